"""The names of the files in a run's folder."""

MODEL_CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
# Of TinyBERT, beside the student's weights: the layer that fits its width to the teacher's.
FIT_FILE = "fit_dense.safetensors"
# The resolved settings; the definition of the task; the metrics; what report and card are made of.
CONFIG_FILE = "run.yaml"
TASK_FILE = "task.yaml"
RESULTS_FILE = "all_results.json"
FACTS_FILE = "report.json"
# Beside the results until all that follows them is done: predictions, report, card, push.
UNFINISHED_FILE = "unfinished"
RUN_ID_FILE = "run_identity.json"
MARKDOWN_FILE = "report.md"
PAGE_FILE = "report.html"
CARD_FILE = "README.md"
CARD_SETTINGS_FILE = "card.yaml"
PROBE_FILE = "bias_probe.json"
# Of a checkpoint: the Trainer's state, what it forgets, and the hashes of all files.
STATE_FILE = "trainer_state.json"
PROGRESS_FILE = "progress.json"
MANIFEST_FILE = "manifest.json"
# Of a sweep, and of those of its runs whose weights were removed.
SWEEP_FILE = "sweep.json"
NO_WEIGHTS_FILE = "weights_removed.txt"
