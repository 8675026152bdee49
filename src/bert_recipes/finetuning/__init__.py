"""How each kind of task is trained, measured and written down."""
