"""Tasks as rows of data, their files and their examples; no torch, no YAML."""
