"""A page in the browser to try a checkpoint: what its heads say, its attention, its pieces."""
