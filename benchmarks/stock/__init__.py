"""Fine-tuning beside stock transformers: the same model, data and settings, two Trainers."""
