"""The passes over memory between a BERT layer's matrix products: compiled for this CPU, or with torch operations."""

from bert_recipes.kernels.loading import FAST_LAYERS, Kernels, load_kernels


__all__ = ["FAST_LAYERS", "Kernels", "load_kernels"]
