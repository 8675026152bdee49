"""The page is one file that loads nothing, runs nothing and shows every text as it is; reports say
what a run's files say.
"""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from bert_recipes.reports.page import escape as escape_markdown
from bert_recipes.reports.page import (
    finetuning_table,
    format_number,
    pretraining_table,
    write_report,
)
from bert_recipes.reports.plots import COLORS


# The page


class Seen(HTMLParser):
    """Tags, attributes and the text of a page; fails on tags that are not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.texts.append(data)


LONG_HISTORY = [
    {"step": step, "mlm_loss": 9 - step / 10, "loss": 1.0, "eval_mlm_loss": 8.0}
    for step in range(1, 20)
]


@pytest.fixture(scope="module", params=["pretraining", "finetuning"])
def page(request, make_lasting_run_folder, pretraining_facts, finetuning_facts, evil):
    facts = pretraining_facts if request.param == "pretraining" else finetuning_facts
    results = {
        "model": evil,
        "eval_accuracy": 0.75,
        "eval_mlm_loss": 5.0,
        "eval_mlm_accuracy": 0.5,
        "date": evil,
    }
    results |= {"splits": {evil: {"examples": 16, "features": 16}}, "train_steps": 20}
    # As a folder may be called.
    name = f"<script>alert(2)<script>$x_{{ &{request.param}"
    folder = make_lasting_run_folder(name, results=results, history=LONG_HISTORY, facts=facts)
    write_report(folder)
    return folder


def test_evil_texts_stay_texts_and_in_their_cells(page, evil):
    seen = Seen((page / "report.html").read_text())
    assert not seen.open
    assert not {"script", "img"} & set(seen.tags)
    assert not [name for _, name, _ in seen.attributes if name.startswith("on")]
    assert evil in "".join(seen.texts)
    assert page.name in seen.texts
    text = (page / "report.md").read_text()
    assert not re.search(r"(?<!\\)<(script|img)|!\[[^\]]*\]\(http", text)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}) == 1, block


@pytest.mark.parametrize("mark", ["<b>", "|"])
@pytest.mark.parametrize("before", ["", "\\", "\\\\"])
def test_a_backslash_of_a_text_takes_none_away(mark, before):
    shown = escape_markdown(before + mark)
    backslashes = shown.index(mark)
    assert backslashes == 2 * len(before) + 1  # an odd number: the last one is the mark's


def test_nothing_is_loaded_from_anywhere(page):
    text = (page / "report.html").read_text()
    seen = Seen(text)
    for tag, name, value in seen.attributes:
        if name in (
            "src",
            "href",
            "xlink:href",
            "srcset",
            "action",
            "data",
            "poster",
            "background",
        ):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert "url(" not in value or re.fullmatch(r".*url\(#[\w-]+\).*", value), (tag, name, value)
    assert not re.search(
        r"@import|@font-face|url\((?!#)", re.sub(r"<(main|svg).*?</\1>", "", text, flags=re.DOTALL)
    )
    policy = [
        value
        for tag, name, value in seen.attributes
        if name == "content" and value.startswith("default-src")
    ]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "xmlns" not in text


def test_ids_are_there_once_and_every_reference_has_its_own(page):
    attributes = Seen((page / "report.html").read_text()).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    wanted = {
        value[1:]
        for _, name, value in attributes
        if name in ("href", "xlink:href") and value.startswith("#")
    }
    wanted |= {
        part for _, _, value in attributes for part in re.findall(r"url\(#([\w-]+)\)", value)
    }
    assert len(ids) == len(set(ids))
    assert wanted
    assert wanted <= set(ids)


def test_every_colour_of_a_plot_is_one_of_the_page(page):
    text = (page / "report.html").read_text()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}", drawn)
    used = set(re.findall(r"var\(--(\w+)\)", drawn))
    assert {"ink", "muted", "line", "blue"} - {"ink"} <= used <= COLORS.keys()
    for name, (light, dark) in COLORS.items():
        assert text.count(f"--{name}:{light};") == text.count(f"--{name}:{dark};") == 1


def test_a_report_is_the_same_every_time(page):
    first = {path.name: path.read_bytes() for path in write_report(page)}
    assert {path.name: path.read_bytes() for path in write_report(page)} == first


# Pre-training


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
    {
        "step": 1,
        "mlm_loss": 7.0,
        "nsp_loss": 0.7,
        "learning_rate": 0.0,
        "tokens_per_second": 800.0,
        "mfu": 0.2,
    },
    {"step": 2, "eval_mlm_loss": 6.0, "eval_unigram_loss": 6.5, "eval_majority_accuracy": 0.55},
    {
        "step": 3,
        "mlm_loss": 6.5,
        "nsp_loss": 0.69,
        "learning_rate": 1e-4,
        "tokens_per_second": 900.0,
        "mfu": 0.3,
    },
]


@pytest.fixture
def lines_of(make_run_folder):
    def lines(**parts):
        folder = make_run_folder(**parts)
        assert {path.name for path in write_report(folder)} == {
            "report.md",
            "report.html",
            "losses.png",
        }
        return (folder / "report.md").read_text().splitlines(), folder

    return lines


def test_held_out_figures_stand_beside_their_baselines(lines_of):
    facts = {"kind": "pretraining", "run": {"global_batch": 32}, "remark": "it stalls"}
    lines, folder = lines_of(results=RESULTS, history=HISTORY, facts=facts)
    assert "| masked-LM loss, nats (baseline: word frequencies) | 5.432 | 6.500 |" in lines
    assert "| masked-LM accuracy (baseline: most frequent piece) | 12.3% | 4.5% |" in lines
    # Wilson 1927: of 75 in 100, as statsmodels.stats.proportion.proportion_confint(75, 100,
    # method="wilson") has it.
    interval = "95% interval 65.7% to 82.5%"
    assert (
        f"| next-sentence accuracy (baseline: larger class) | 75.0% ({interval}) | 55.0% |" in lines
    )
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
    for title in (
        "Masked-LM loss",
        "Next-sentence loss",
        "Learning rate",
        "Throughput",
        "Model FLOPs utilisation",
    ):
        assert f'aria-label="{title}"' in page


def test_a_run_without_evaluation_and_log_still_gives_a_report(lines_of):
    lines, folder = lines_of()
    assert lines[0] == "# Pre-training report"
    assert not [line for line in lines if "masked-LM loss" in line]
    assert not [line for line in lines if line.startswith("## Held-out")]
    assert "The run left no report.json" in lines[-1]
    assert (folder / "losses.png").is_file()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "1 step, evaluations included"),
        (
            {"resumed_at_step": 80},
            "since it resumed at step 80 of 1",
        ),  # an older run kept the time of its last part
        ({"resumed_at_step": 80, "train_seconds_is_whole": True}, "1 step, evaluations included"),
    ],
)
def test_one_point_is_no_curve_and_a_time_says_what_it_counts(lines_of, more, said):
    once = {
        "step": 6,
        "mlm_loss": 7.0,
        "learning_rate": 0.1,
        "eval_mlm_loss": 6.0,
        "eval_mlm_accuracy": 0.1,
    }
    results = {"train_seconds": 0.5, "train_steps": 1, "peak_memory_mb": 539.4}
    results["machine"] = {"instructions": ["a", "b"]}
    lines, folder = lines_of(results=results | more, history=[once, {"step": 6, "mlm_loss": 7.0}])
    for line in (
        "Nothing was logged twice: no curves.",
        "| train seconds | 0.5 |",
        "| peak memory, MB | 539.4 |",
    ):
        assert line in lines
    assert "| instructions | a, b |" in lines
    page = (folder / "report.html").read_text()
    assert "<svg" not in page
    assert said in page


def test_a_model_whose_outputs_are_not_finite_still_has_its_report(lines_of, pretraining_facts):
    nan = math.nan
    lines, _ = lines_of(
        name="none",
        results=dict.fromkeys(RESULTS, None),
        history=[{"step": 1, "mlm_loss": math.inf}] * 2,
    )
    assert "| masked-LM loss, nats (baseline: word frequencies) | n/a |  |" in lines
    mask = pretraining_facts["held_out"]["masks"][0] | {"probability": nan, "guesses": [["a", nan]]}
    verdict = {"first": "a", "second": "b", "is_next": nan}
    held_out = {"pairs": 16, "masks": [mask], "verdicts": [verdict | {"truth": True}]}
    said = (
        "**Attention:** Outputs of the model are not finite: where they are not, there is no "
        "example of what it says."
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
    table = pretraining_table(dict.fromkeys(RESULTS, nan)).splitlines()
    assert "| masked-LM accuracy (baseline: most frequent piece) | n/a |  |" in table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0000"),
        (0.25, "0.2500"),
        (1e-5, "1.00e-05"),
        (12.34, "12.3"),
        (4000, "4,000"),
        (float("nan"), "n/a"),
    ],
)
def test_numbers_are_shown_as_people_read_them(value, shown):
    assert format_number(value) == shown


def test_the_data_is_described_by_what_was_counted(lines_of, pretraining_facts):
    lines, folder = lines_of(results=RESULTS, facts=pretraining_facts)
    assert "| second sentence follows | 62.5% | 20 of 32 pairs |" in lines
    assert "| pads | 25.0% | fraction of the positions of the batches |" in lines
    assert "| of these [MASK] / left as it is / another | 80.0% / 10.0% / 10.0% |  |" in lines
    assert "| documents | 1,000 | 10 |" in lines
    said = next(line for line in lines if line.startswith("Counted over 32 of 3,200 inputs"))
    assert "4 micro-batches of 8" in said
    assert 'aria-label="Lengths of the inputs"' in (folder / "report.html").read_text()


def test_the_right_piece_is_marked_and_its_rank_given_where_it_is_not_among_the_first(
    lines_of, pretraining_facts
):
    (mask,), known = (
        pretraining_facts["held_out"]["masks"],
        {"before": "a |", "after": "", "truth": "b"},
    )
    masks = [mask, known | {"guesses": [("|", 0.5), ("b", 0.25)]}]
    verdict = {"first": "c | d", "second": "e", "is_next": 0.987, "truth": True}
    held_out = {"pairs": 16, "masks": masks, "verdicts": [verdict]}
    lines, folder = lines_of(facts=pretraining_facts | {"held_out": held_out})
    (said,) = [line for line in lines if "held-out order" in line]
    assert said.startswith("Of the first 16 inputs of the held-out order")
    assert "the first 2 with a [MASK]: the middle one of each" in said
    assert sum("**c** 0.01 (rank 37) |" in line for line in lines) == 1
    assert (folder / "report.html").read_text().count(
        '<li class="true"><b>\N{CHECK MARK} c</b>'
    ) == 1
    assert "| a \\| [MASK] | b | \\| 0.50, **b** 0.25 |" in lines
    assert "| c \\| d | e | 0.99 | it follows |" in lines


# Fine-tuning


TASK = (
    "name: mine\nkind: sequence_classification\ntext_columns: [text]\nlabels: [a, b]\nfiles: "
    "{train: a.jsonl}\n"
)
TASK_HISTORY = [
    {
        "step": step,
        "loss": 1.0 / step,
        "eval_loss": 0.5,
        "eval_accuracy": 0.7,
        "learning_rate": 1e-5,
    }
    for step in (1, 2)
]


@pytest.fixture
def report_of(make_run_folder):
    def texts(**parts):
        folder = make_run_folder(**parts)
        write_report(folder)
        return (folder / "report.md").read_text(), (folder / "report.html").read_text()

    return texts


@pytest.mark.parametrize(
    ("accuracy", "interval", "baseline", "is_said"),
    [
        (0.8, [0.58, 0.92], 0.75, True),  # few rows
        (0.8, [0.76, 0.84], 0.75, False),
        (0.7, [0.66, 0.74], 0.75, True),  # below
        (0.75, [0.75, 0.75], 0.75, True),  # one class only
        (0.1, [0.0, 0.22], 0.0, False),  # "no answer" is never right here
        (0.0, None, 0.0, True),
        (0.1, [-0.1, 0.3], 0.0, True),  # a correlation
        (0.8, None, 0.75, False),  # no interval
        (0.75, None, 0.75, True),
        (0.8, [0.58, 0.92], None, False),  # an older run
        (None, None, 0.75, False),  # it diverged
    ],
)
def test_a_figure_beside_its_interval_and_what_is_no_better_than_a_constant_answer(
    report_of, finetuning_facts, accuracy, interval, baseline, is_said
):
    certainty = {"intervals": {"accuracy": interval} if interval else {}}
    certainty |= {"baselines": {"accuracy": baseline} if baseline is not None else {}}
    results = {"task": "mine", "eval_accuracy": accuracy, **certainty}
    text, page = report_of(results=results, facts=finetuning_facts, task=TASK)
    said = "accuracy: nothing shows that the model does better than one constant answer."
    assert (f"**Attention:** {said}" in text) is is_said
    assert (said in page) is is_said
    if accuracy == 0.8 and interval and baseline:
        assert f"| accuracy | 0.8000 | {interval[0]:.4f} to {interval[1]:.4f} | 0.7500 |" in text
        assert (
            f"95% interval {interval[0]:.1%} to {interval[1]:.1%}; constant answer: 75.0%" in page
        )


@pytest.mark.parametrize(
    ("accuracy", "steps", "said"),
    [
        (0.75, 15, "than one constant answer; 15 steps are few: try --num_train_epochs 20"),
        (0.75, 5000, "than one constant answer"),
        (0.9, 15, ""),
    ],
)
def test_the_console_says_that_a_model_is_no_better_than_a_constant_answer(accuracy, steps, said):
    results = {"eval_accuracy": accuracy, "train_steps": steps}
    results |= {"intervals": {"accuracy": [accuracy - 0.1, 1.0]}, "baselines": {"accuracy": 0.75}}
    lines = finetuning_table(results, "accuracy").splitlines()
    assert (lines[-1] == f"accuracy: nothing shows that the model does better {said}") is (
        steps == 5000
    )
    assert (f"accuracy: nothing shows that the model does better {said}" in lines[-1]) is bool(said)
    assert finetuning_table(results).splitlines() == [
        line for line in lines if line.startswith("|")
    ]


def test_curves_classes_confusion_reliability_and_errors_are_there(report_of, finetuning_facts):
    results = {"task": "mine", "eval_loss": 0.5, "eval_accuracy": 0.7, "train_steps": 2}
    text, page = report_of(results=results, history=TASK_HISTORY, facts=finetuning_facts)
    reliability = "Reliability: expected calibration error 0.138"
    for title in ("Loss", "Metrics on the validation data", "Learning rate", reliability):
        assert f'aria-label="{title}"' in page
    assert "| no | 0.500 | 0.750 | 0.600 | 8 | 12 |" in text
    assert "| no | 4 | 4 |" in text
    assert "| 0.50 to 1.00 | 12 | 0.900 | 0.750 |" in text
    assert re.search(r"\| c \| .* \(0\.980\) \| no \|", text)
    split = {"name": "validation", "suffix": "", "examples": 16, "looked_at": 0}
    text, _ = report_of(
        name="other", results={"task": "mine"}, facts=finetuning_facts | {"splits": [split]}
    )
    assert (
        "**Attention:** validation: the model's outputs are not finite, nothing was predicted."
        in text
    )
    assert "## By class" not in text


def test_a_run_without_facts_has_its_metrics_and_no_costs_among_them(report_of):
    costs = {"eval_seconds": 1.0, "eval_runtime": 1.0, "eval_steps_per_second": 1.0}
    text, page = report_of(
        results={"task": "mine", "eval_X_f1": 0.5} | costs, history=TASK_HISTORY[:1]
    )
    assert "| ---: |\n| X f1 | 0.5000 |  |  |\n\n" in text
    assert "The run left no report.json" in page


# Sweeps


def combination(rate, values):
    median = sorted(value for value in values if value is not None)[0] if any(values) else None
    runs = [
        {"seed": seed, "folder": f"{rate}/seed-{seed}", "value": value}
        for seed, value in enumerate(values)
    ]
    return {
        "name": f"learning_rate-{rate}",
        "settings": {"learning_rate": rate, "num_train_epochs": "3"},
        "median": median,
        "min": median,
        "max": median,
        "std": None,
        "runs": runs,
    }


@pytest.fixture
def sweep(tmp_path, evil):
    folder = tmp_path / "sweep"
    folder.mkdir()
    content = {
        "metric": "f1",
        "best": "learning_rate-3e-5",
        "best_run": "learning_rate-3e-5/seed-0",
        "combinations": [
            combination("5e-5", [None, 0.5]),
            combination("3e-5", [0.8, 0.9]),
            combination(evil, [None]),
        ],
        "settings": {"flags": ["--task", evil], "sweep": {"learning_rate": ["5e-5", "3e-5"]}},
        "machine": {"processor": "a processor"},
    }
    (folder / "sweep.json").write_text(json.dumps(content))
    return folder


def test_a_sweep_has_a_page_with_its_plot_and_marks_the_best(sweep):
    content = json.loads((sweep / "sweep.json").read_text())
    content["how_chosen"] = "It has the greatest median."
    (sweep / "sweep.json").write_text(json.dumps(content))
    names = {path.name for path in write_report(sweep)}
    assert names == {"report.md", "report.html", "sweep.png"}
    text, page = (sweep / "report.md").read_text(), (sweep / "report.html").read_text()
    assert "| 3e-5 | **0.8000** | 0.8000 | 0.8000 |  | 2 |" in text
    assert "| diverged | diverged | diverged |" in text
    assert "![sweep](sweep.png)" in text
    assert page.count("<svg") == 1
    assert "<script" not in page
    assert "<b>3e-5</b>" in page
    assert "2 runs, 0.8000 to 0.8000" in page
    assert (
        "It has the greatest median. `best` is learning_rate-3e-5/seed-0, with a report of its own."
        in text
    )
