"""Pre-training, and what all training shares: the trainer, optimisation, checkpoints and resume,
callbacks, launch.
"""
