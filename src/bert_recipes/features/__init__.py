"""Vectors out of a frozen encoder: of tokens, by layer, or of whole inputs."""
