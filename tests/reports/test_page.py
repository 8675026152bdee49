"""The page is one file that loads nothing, runs nothing and shows every text as it is; reports say
what a run's files say.
"""

import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bert_recipes.reports.page import escape as escape_markdown
from bert_recipes.reports.page import (
    finetuning_table,
    format_number,
    pretraining_table,
    write_report,
)
from bert_recipes.reports.plots import COLORS


SNAPSHOTS = Path(__file__).parent / "snapshots"
TASK = (
    "name: mine\nkind: sequence_classification\ntext_columns: [text]\nlabels: [a, b]\nfiles: "
    "{train: a.jsonl}\n"
)


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


@pytest.fixture(scope="module", params=["pretraining", "finetuning"])
def page(
    request,
    make_lasting_run_folder,
    pretraining_facts,
    finetuning_facts,
    evil,
):
    history = []
    for step in range(1, 20):
        line = {
            "step": step,
            "mlm_loss": 9 - step / 10,
            "loss": 1.0,
            "eval_mlm_loss": 8.0,
        }
        history.append(line)

    results = {
        "model": evil,
        "eval_accuracy": 0.75,
        "eval_mlm_loss": 5.0,
        "date": evil,
        "splits": {evil: {"examples": 16, "features": 16}},
        "train_steps": 20,
    }
    facts = pretraining_facts
    if request.param == "finetuning":
        results["task"] = evil
        facts = finetuning_facts
    # As a folder may be called.
    name = f"<script>alert(2)<script>$x_{{ &{request.param}"
    folder = make_lasting_run_folder(
        name,
        results=results,
        history=history,
        facts=facts,
    )
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
    backslashes = escape_markdown(before + mark).index(mark)
    assert backslashes == 2 * len(before) + 1  # an odd number: the last one is the mark's


def test_nothing_is_loaded_from_anywhere(page):
    text = (page / "report.html").read_text()
    loading = ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background")
    policies, ids, references = [], [], []
    for tag, name, value in Seen(text).attributes:
        if name in loading:
            assert value.startswith(("#", "data:")), (tag, name, value)
            references += re.findall(r"^#(.+)", value)
        assert "url(" not in value or re.fullmatch(r".*url\(#[\w-]+\).*", value), (tag, name, value)
        references += re.findall(r"url\(#([\w-]+)\)", value)
        if name == "id":
            ids.append(value)
        if name == "content" and value.startswith("default-src"):
            policies.append(value)

    styles = re.sub(r"<(main|svg).*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"@import|@font-face|url\((?!#)", styles)
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "xmlns" not in text
    # Every reference has its own place.
    assert len(ids) == len(set(ids))
    assert references
    assert set(references) <= set(ids)


def test_every_colour_of_a_plot_is_one_of_the_page(page):
    text = (page / "report.html").read_text()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}", drawn)
    used = set(re.findall(r"var\(--(\w+)\)", drawn))
    assert {"muted", "line"} <= used <= COLORS.keys()
    for name, (light, dark) in COLORS.items():
        assert text.count(f"--{name}:{light};") == text.count(f"--{name}:{dark};") == 1


def test_a_report_is_the_same_every_time(page):
    names = ("report.md", "report.html", "losses.png")
    first = [(page / name).read_bytes() for name in names]
    write_report(page)
    assert [(page / name).read_bytes() for name in names] == first


# Runs


@pytest.fixture
def report_of(make_run_folder):
    """Both forms of a run's report."""

    def texts(**parts):
        folder = make_run_folder(**parts)
        write_report(folder)
        return (folder / "report.md").read_text(), (folder / "report.html").read_text()

    return texts


PAGES = {
    "pretraining": (
        'aria-label="Masked-LM loss"',
        'aria-label="Next-sentence loss"',
        'aria-label="Held-out accuracy"',
        'aria-label="Learning rate"',
        'aria-label="Throughput"',
        'aria-label="Model FLOPs utilization"',
        "word-frequency baseline: 6.17",
        "majority-class baseline: 54.0%",
        '<li class="true"><b>\N{CHECK MARK} ',
        "rank 134",
    ),
    "classification": (
        'aria-label="Loss"',
        'aria-label="Validation metrics"',
        'aria-label="Reliability: expected calibration error 0.166"',
        "95% interval 71.1% to 79.5%; majority-class baseline: 38.0%",
        "Rows: true class. Columns: prediction.",
        "prediction: pictures (0.794)",
    ),
    "sweep": ("3 runs, 0.8000 to 0.9000", "diverged"),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_report_is_that_of_the_snapshot(tmp_path, name):
    folder = shutil.copytree(SNAPSHOTS / name, tmp_path / name)
    write_report(folder)
    assert (folder / "report.md").read_text() == (folder / "expected_report.md").read_text()
    page = (folder / "report.html").read_text()
    for words in PAGES[name]:
        assert words in page


def test_every_choice_has_a_column_where_rows_have_different_numbers_of_them(report_of):
    rows = []
    for num_choices in (2, 4, 3):
        choices = [
            [str(number), f"{number} of {num_choices}"] for number in range(1, num_choices + 1)
        ]
        row = {"texts": [["context", "c"], *choices], "said": "1", "truth": "2", "is_right": False}
        rows.append(row)
    split = {"name": "validation", "examples": 3, "first": rows}
    facts = {"kind": "finetuning", "task": "mine", "splits": [split]}
    text, _ = report_of(results={"task": "mine", "eval_accuracy": 0.0}, facts=facts)
    lines = text.splitlines()
    start = lines.index("| context | 1 | 2 | 3 | 4 | prediction | truth |")
    assert lines[start + 2 : start + 5] == [
        "| c | 1 of 2 | 2 of 2 |  |  | 1 | 2 |",
        "| c | 1 of 4 | 2 of 4 | 3 of 4 | 4 of 4 | 1 | 2 |",
        "| c | 1 of 3 | 2 of 3 | 3 of 3 |  | 1 | 2 |",
    ]


def test_a_run_without_evaluation_log_and_facts_still_gives_a_report(report_of):
    text, page = report_of(
        history=[
            {
                "step": 6,
                "mlm_loss": 7.0,
                "eval_mlm_loss": 6.0,
            }
        ]
    )
    lines = text.splitlines()
    assert lines[0] == "# Pre-training report"
    assert "Too few log points to draw curves." in lines
    assert "The run left no report.json" in lines[-1]
    assert "<svg" not in page
    nan = math.nan
    text, page = report_of(
        name="diverged",
        results={
            "eval_mlm_loss": nan,
            "eval_mlm_accuracy": nan,
            "machine": {},
        },
        history=[{"step": 1, "mlm_loss": math.inf}] * 2,
    )
    assert "| masked-LM loss, nats (baseline: word frequencies) | n/a |  |" in text.splitlines()
    assert not re.search(r"\bnan\b", page)
    table = pretraining_table({"eval_mlm_accuracy": nan}).splitlines()
    assert "| masked-LM accuracy (baseline: most frequent token) | n/a |  |" in table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0000"),
        (0.25, "0.2500"),
        (1e-5, "1e-05"),
        (12.34, "12.34"),
        (16816.3, "16,816"),
        (4000, "4,000"),
        (math.nan, "n/a"),
        (["a", "b"], "a, b"),
        (True, "True"),
    ],
)
def test_numbers_are_shown_as_people_read_them(value, shown):
    assert format_number(value) == shown


def test_a_split_without_predictions_says_so(report_of, finetuning_facts):
    split = {
        "name": "validation",
        "examples": 16,
    }
    facts = {**finetuning_facts, "splits": [split]}
    text, _ = report_of(results={"task": "mine", "eval_runtime": 1.0}, facts=facts)
    message = "validation: the model's outputs are not finite, nothing was predicted."
    assert f"**Attention:** {message}" in text
    assert "## By class" not in text
    assert "runtime" not in text


@pytest.mark.parametrize(
    ("accuracy", "interval", "baseline", "is_no_better"),
    [
        (0.8, [0.58, 0.92], 0.75, True),  # few rows
        (0.8, [0.76, 0.84], 0.75, False),
        (0.7, [0.66, 0.74], 0.75, True),  # below
        (0.75, [0.75, 0.75], 0.75, True),  # one class only
        (0.1, [0.0, 0.22], 0.0, False),  # "no answer" is never right here
        (0.0, None, 0.0, True),
        (0.1, [-0.1, 0.3], 0.0, True),  # a correlation
        (0.8, None, 0.75, False),  # no interval
        (0.8, [0.58, 0.92], None, False),  # an older run
        (None, None, 0.75, False),  # it diverged
    ],
)
def test_a_model_that_does_not_beat_its_baseline_is_called_so(
    report_of,
    finetuning_facts,
    accuracy,
    interval,
    baseline,
    is_no_better,
):
    results = {
        "task": "mine",
        "eval_accuracy": accuracy,
        "train_steps": 15,
    }
    results["intervals"] = {"accuracy": interval} if interval else {}
    results["baselines"] = {} if baseline is None else {"accuracy": baseline}
    text, page = report_of(
        results=results,
        facts=finetuning_facts,
        task=TASK,
    )
    warning = "accuracy: nothing shows that the model beats the majority-class baseline"
    table = finetuning_table(results, "accuracy")

    for report in (text, page, table):
        assert (warning in report) is is_no_better
    if is_no_better:
        assert (
            f"{warning}; 15 steps are few: try --num_train_epochs 20 in another --output_dir"
            in table
        )
        results["train_steps"] = 500
        assert finetuning_table(results, "accuracy").endswith(warning)


def test_a_pretraining_report_says_that_the_outputs_are_not_finite(report_of):
    held_out = {"masks": [], "verdicts": [], "is_finite": False}
    text, page = report_of(facts={"kind": "pretraining", "held_out": held_out})
    for report in (text, page):
        assert "outputs are not finite: there are no examples" in report
