"""Trackers of a run (Weights & Biases, TensorBoard, Trackio): what `report_to` names, made so that none can harm the run."""
