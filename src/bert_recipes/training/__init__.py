"""Pre-training, and what all training shares.

Trainer, optimisation, checkpoints and resume, callbacks, launch.
"""
