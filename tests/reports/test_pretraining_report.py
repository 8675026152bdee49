"""The report says what a run found, whatever was logged and whatever its texts hold."""

import re

import pytest

from bert_recipes.reports.formatting import format_number
from bert_recipes.reports.pretraining import describe_results
from bert_recipes.reports.writing import write_report


RESULTS = {
    "eval_mlm_loss": 5.4321,
    "eval_unigram_loss": 6.5,
    "eval_perplexity": 228.6,
    "eval_mlm_accuracy": 0.123,
    "eval_unigram_accuracy": 0.045,
    "eval_nsp_loss": 0.61,
    "eval_nsp_accuracy": 0.75,
    "eval_majority_accuracy": 0.55,
    "eval_pairs": 100.0,
    "train_steps": 4000,
    "machine": {"processor": "a processor", "gpu": None},
}
HISTORY = [
    {"step": 1, "mlm_loss": 7.0, "nsp_loss": 0.7, "learning_rate": 0.0, "tokens_per_second": 800.0, "mfu": 0.2},
    {"step": 2, "eval_mlm_loss": 6.0, "eval_unigram_loss": 6.5, "eval_majority_accuracy": 0.55},
    {"step": 3, "mlm_loss": 6.5, "nsp_loss": 0.69, "learning_rate": 1e-4, "tokens_per_second": 900.0, "mfu": 0.3},
]


@pytest.fixture
def lines_of(make_run_folder):
    def lines(**parts):
        folder = make_run_folder(**parts)
        assert {path.name for path in write_report(folder)} == {"report.md", "report.html", "losses.png"}
        return (folder / "report.md").read_text().splitlines(), folder

    return lines


def test_held_out_figures_stand_beside_their_yardsticks(lines_of):
    facts = {"kind": "pretraining", "run": {"global_batch": 32}, "remark": "it stalls"}
    lines, folder = lines_of(results=RESULTS, history=HISTORY, facts=facts)
    assert "| masked-LM loss, nats (yardstick: word frequencies) | 5.432 | 6.500 |" in lines
    assert "| masked-LM accuracy (yardstick: most frequent piece) | 12.3% | 4.5% |" in lines
    # Wilson 1927: of 75 in 100, as statsmodels.stats.proportion.proportion_confint(75, 100, method="wilson") has it.
    interval = "95% interval 65.7% to 82.5%"
    assert f"| next-sentence accuracy (yardstick: larger class) | 75.0% ({interval}) | 55.0% |" in lines
    assert "| train steps | 4,000 |" in lines
    assert "| global batch | 32 |" in lines
    assert "| processor | a processor |" in lines
    assert "**Attention:** it stalls." in lines
    assert not [line for line in lines if "gpu" in line]
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    assert "word frequencies alone: 6.50" in page  # the tile, and the dashed line's legend
    assert "always the most frequent piece: 4.5%" in page
    assert f"{interval}; always the larger class: 55.0%" in page.replace("(", "").replace(")", "")
    for title in ("Masked-LM loss", "Next-sentence loss", "Learning rate", "Throughput", "Model FLOPs utilisation"):
        assert f'aria-label="{title}"' in page


def test_a_run_without_evaluation_and_log_still_gives_a_report(lines_of):
    lines, folder = lines_of()
    assert lines[0] == "# Pre-training report"
    assert not [line for line in lines if "masked-LM loss" in line]
    assert not [line for line in lines if line.startswith("## Held-out")]
    assert "The run left no report.json" in lines[-1]
    assert (folder / "losses.png").is_file()


def test_one_point_is_no_curve(lines_of):
    once = {"mlm_loss": 7.0, "learning_rate": 0.1, "eval_mlm_loss": 6.0, "eval_mlm_accuracy": 0.1}
    results = {"train_seconds": 0.5, "train_steps": 1}
    lines, folder = lines_of(results=results, history=[{"step": 6} | once, {"step": 6, "mlm_loss": 7.0}])
    assert "Nothing was logged twice: no curves." in lines
    page = (folder / "report.html").read_text()
    assert "<svg" not in page
    assert "1 step, evaluations included" in page
    assert "| train seconds | 0.5 |" in lines
    more = [{"step": 6} | once, {"step": 7, "mlm_loss": 6.9, "learning_rate": float("nan")}]
    _, folder = lines_of(name="more", history=more)
    assert re.findall(r'aria-label="([^"]+)"', (folder / "report.html").read_text()) == ["Masked-LM loss"]


def test_a_bar_in_a_text_does_not_break_the_table(lines_of):
    mask = {"before": "a |", "after": "", "truth": "b", "guesses": [("|", 0.5), ("b", 0.25)]}
    verdict = {"first": "c | d", "second": "e", "is_next": 0.987, "truth": True}
    facts = {"kind": "pretraining", "held_out": {"pairs": 2, "masks": [mask], "verdicts": [verdict]}}
    lines, _ = lines_of(facts=facts)
    assert "| a \\| [MASK] | b | \\| 0.50, **b** 0.25 |" in lines
    assert "| c \\| d | e | 0.99 | it follows |" in lines


def test_undefined_figures_are_said_to_be(lines_of):
    broken = dict.fromkeys(RESULTS, None) | {"machine": {}}
    history = [{"step": 1, "mlm_loss": float("nan")}, {"step": 2, "mlm_loss": float("inf")}]
    lines, _ = lines_of(results=broken, history=history)
    assert "| masked-LM loss, nats (yardstick: word frequencies) | n/a |  |" in lines


def test_a_model_whose_outputs_are_not_finite_still_has_its_report(lines_of, pretraining_facts):
    nan = float("nan")
    mask = pretraining_facts["held_out"]["masks"][0] | {"probability": nan, "guesses": [["a", nan]]}
    verdict = {"first": "a", "second": "b", "is_next": nan}
    held_out = {"pairs": 16, "masks": [mask], "verdicts": [verdict | {"truth": True}]}
    said = (
        "**Attention:** Outputs of the model are not finite: where they are not, there is no example of what it says."
    )
    results = dict.fromkeys(RESULTS, nan) | {"machine": {}}
    lines, folder = lines_of(results=results, facts=pretraining_facts | {"held_out": held_out})
    assert said in lines
    assert not [line for line in lines if line.startswith("## Held-out")]
    assert not re.search(r"\bnan\b", (folder / "report.html").read_text())
    held_out["masks"] = [mask, pretraining_facts["held_out"]["masks"][0]]
    lines, _ = lines_of(name="in_part", facts=pretraining_facts | {"held_out": held_out})
    assert said in lines
    assert "## Held-out sentences" in lines
    assert (
        "| masked-LM accuracy (yardstick: most frequent piece) | n/a |  |"
        in describe_results(dict.fromkeys(RESULTS, nan)).splitlines()
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.0000"), (0.25, "0.2500"), (1e-5, "1.00e-05"), (12.34, "12.3"), (4000, "4,000"), (float("nan"), "n/a")],
)
def test_numbers_are_shown_as_people_read_them(value, shown):
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("is_whole", "shown"),
    [
        (None, "since it went on at step 80 of 100"),
        (False, "since it went on at step 80 of 100"),
        (True, "100 steps, evaluations"),
    ],
)
def test_a_run_that_went_on_says_what_its_time_counts(lines_of, is_whole, shown):
    """Without the key: an older run, which kept the time of its last part alone."""
    results = {"train_seconds": 50.0, "train_steps": 100, "resumed_at_step": 80}
    _, folder = lines_of(results=results | ({} if is_whole is None else {"train_seconds_is_whole": is_whole}))
    page = (folder / "report.html").read_text()
    assert shown in page
    assert ("since it went on" in page) != (is_whole is True)


def test_the_data_is_described_by_what_was_counted(lines_of, pretraining_facts):
    lines, folder = lines_of(results=RESULTS, facts=pretraining_facts)
    assert "| second sentence follows | 62.5% | 20 of 32 pairs |" in lines
    assert "| pads | 25.0% | share of the positions of the batches |" in lines
    assert "| of these [MASK] / left as it is / another | 80.0% / 10.0% / 10.0% |  |" in lines
    assert "| documents | 1,000 | 10 |" in lines
    said = next(line for line in lines if line.startswith("Counted over 32 of 3,200 pairs"))
    assert "4 micro-batches of 8" in said
    assert 'aria-label="Lengths of the pairs"' in (folder / "report.html").read_text()


def test_it_is_said_how_many_pairs_were_looked_at_and_how_many_are_shown(lines_of, pretraining_facts):
    mask = pretraining_facts["held_out"]["masks"][0]
    facts = pretraining_facts | {"held_out": {"pairs": 16, "masks": [mask] * 3}}
    lines, folder = lines_of(facts=facts)
    assert (folder / "report.html").read_text().count("\N{CHECK MARK} c") == 3
    (said,) = [line for line in lines if "held-out order" in line]
    assert said.startswith("Of the first 16 pairs of the held-out order")
    assert "the first 3 with a [MASK]: the middle one of each" in said


def test_the_right_piece_is_marked_and_its_place_given_where_it_is_not_among_the_first(lines_of, pretraining_facts):
    lines, folder = lines_of(facts=pretraining_facts)
    assert any("**c** 0.01 (rank 37) |" in line for line in lines)
    assert '<li class="true"><b>\N{CHECK MARK} c</b>' in (folder / "report.html").read_text()
    masks = [pretraining_facts["held_out"]["masks"][0] | {"truth": "b"}]
    facts = pretraining_facts | {"held_out": {"pairs": 16, "masks": masks}, "phases": []}
    lines, _ = lines_of(name="other", facts=facts)
    assert any("| b |" in line and "**b** 0.25 |" in line and "rank" not in line for line in lines)
