"""Ours and stock transformers side by side: suites of samples, each sample a process of its own."""
