"""How it is measured: pure functions, each also an `evaluate.Metric` that works without the Hub; no
torch.
"""
