"""Pre-training, and what all training shares.

Trainer, optimization, checkpoints and resume, callbacks, launch.
"""
