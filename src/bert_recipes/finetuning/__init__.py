"""Train, measure and write down each kind of task."""
