"""Metrics as pure functions, also as `evaluate.Metric` that works without the Hub; no torch."""
