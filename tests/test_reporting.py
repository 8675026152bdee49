"""The report says what a run found, whatever was logged and whatever its texts hold."""

from bert_recipes.inspection import FilledMask, NextSentenceVerdict
from bert_recipes.reporting import write_report


RESULTS = {
    "eval_mlm_loss": 5.4321,
    "eval_unigram_loss": 6.5,
    "eval_perplexity": 228.6,
    "eval_mlm_accuracy": 0.123,
    "eval_nsp_loss": 0.61,
    "eval_nsp_accuracy": 0.75,
    "eval_majority_accuracy": 0.55,
    "train_steps": 4000,
    "machine": {"processor": "a processor", "gpu": None},
}
HISTORY = [
    {"step": 1, "mlm_loss": 7.0, "nsp_loss": 0.7},
    {"step": 2, "eval_mlm_loss": 6.0, "eval_unigram_loss": 6.5, "eval_majority_accuracy": 0.55},
]


def lines_of(folder, **parts):
    return write_report(folder, **{"results": {}, "description": {}, "history": [], **parts}).read_text().splitlines()


def test_held_out_figures_stand_beside_their_yardsticks(tmp_path):
    lines = lines_of(tmp_path, results=RESULTS, description={"global_batch": 32}, history=HISTORY, remark="it stalls")
    assert "| masked-LM loss, nats (yardstick: word frequencies) | 5.432 | 6.500 |" in lines
    assert "| next-sentence accuracy (yardstick: larger class) | 75.0% | 55.0% |" in lines
    assert "| train steps | 4,000 |" in lines
    assert "| global batch | 32 |" in lines
    assert "| processor | a processor |" in lines
    assert "**Attention:** it stalls." in lines
    assert not [line for line in lines if "gpu" in line]
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_evaluation_and_log_still_gives_a_report(tmp_path):
    lines = lines_of(tmp_path)
    assert lines[0] == "# Pre-training report"
    assert not [line for line in lines if "masked-LM loss" in line]
    assert not [line for line in lines if line.startswith(("## Filled", "## Does"))]
    assert (tmp_path / "losses.png").is_file()


def test_a_bar_in_a_text_does_not_break_the_table(tmp_path):
    mask = FilledMask("a | [MASK]", [("|", 0.5), ("b", 0.25)])
    lines = lines_of(tmp_path, masks=[mask], verdicts=[NextSentenceVerdict("c | d", "e", 0.987)])
    assert "| a \\| [MASK] | \\| 0.50, b 0.25 |" in lines
    assert "| c \\| d | e | 0.99 |" in lines
