"""The passes over memory between a BERT layer's matrix products: compiled for this CPU, or with torch operations."""

from bert_recipes.kernels.loading import Kernels, load_kernels


__all__ = ["Kernels", "load_kernels"]
