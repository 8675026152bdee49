"""Fine-tuning with every combination of settings and several seeds, each run a process."""
