"""How it is measured: pure functions, each also an `evaluate.Metric` that works without the Hub; no torch."""

from bert_recipes.metrics.registry import METRIC_NAMES, compute


__all__ = ["METRIC_NAMES", "compute"]
