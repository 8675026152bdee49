"""Runs beside each other: what differs, what is better, and what cannot be compared."""

import re

import pytest

from bert_recipes.errors import InputError
from bert_recipes.reports.compare import compare_runs, read_runs


HISTORY = [
    {"step": step, "mlm_loss": 9.0 - step, "eval_mlm_loss": 8.0 - step} for step in (1, 2, 3)
]
FACTS = {"kind": "pretraining", "identity": {"store": "s", "tokenizer": "t"}}


@pytest.fixture
def two(make_run_folder):
    """Two pre-training runs that differ in the learning rate."""

    def make(**second):
        settings = "learning_rate: 1.0e-4\nseed: 1\nmax_seq_length: 128\noutput_dir: runs/one\n"
        first = make_run_folder(
            "one",
            results={
                "eval_mlm_loss": 5.0,
                "eval_nsp_accuracy": 0.6,
                "train_seconds": 10.0,
                "eval_pairs": 100.0,
            },
            history=HISTORY,
            facts=FACTS,
            settings=settings,
        )
        values = {
            "results": {
                "eval_mlm_loss": 4.0,
                "eval_nsp_accuracy": 0.6,
                "train_seconds": 30.0,
                "eval_pairs": 200.0,
            },
            "history": HISTORY,
            "facts": FACTS,
            "settings": settings.replace("1.0e-4", "2.0e-4").replace("runs/one", "runs/two"),
        }
        return [first, make_run_folder("two", **(values | second))]

    return make


def text_of(folders):
    files, _ = compare_runs(read_runs(folders))
    return files["report.md"].decode()


def test_only_what_was_set_differently_is_shown(two):
    text = text_of(two())
    table = re.search(r"\| setting .*?\n\n", text, re.DOTALL)[0].splitlines()
    assert table[0] == "| setting | one | two |"
    assert [line for line in table[2:] if line] == ["| learning_rate | 1.0e-4 | 2.0e-4 |"]
    assert "Attention" not in text


def test_the_better_figure_is_marked_where_one_is_better(two):
    lines = text_of(two()).splitlines()
    assert "| mlm loss | 5.0000 | **4.0000** |" in lines
    assert "| nsp accuracy | 0.6000 | 0.6000 |" in lines  # alike
    assert "| held-out inputs measured | 100 | 200 |" in lines  # neither good nor bad
    assert "| train seconds | 10.0 | 30.0 |" in lines  # what a run costs does not make it better
    assert any(
        line.startswith("Bold: better, and by more than the 95% intervals") for line in lines
    )


def test_curves_of_all_runs_lie_in_one_plot(two):
    page = compare_runs(read_runs(two()))[0]["report.html"].decode()
    plots = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(plots) == 2  # held out and training
    for plot in plots:
        assert '--c:var(--blue)">one</span>' in plot
        assert '--c:var(--orange)">two</span>' in plot


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"facts": FACTS | {"identity": {"store": "other", "tokenizer": "t"}}}, "(store differ)"),
        ({"settings": "learning_rate: 1.0e-4\nmax_seq_length: 512\n"}, "(max_seq_length differ)"),
    ],
)
def test_other_held_out_data_is_said_aloud(two, second, named):
    text = text_of(two(**second))
    assert "**Attention:** The runs were not measured on the same data" in text
    assert named in text


@pytest.mark.parametrize(
    ("second", "facts"),
    [
        ({}, FACTS | {"identity": {"store": "other", "tokenizer": "t"}}),
        ({}, None),  # nobody knows
        ({"eval_mlm_loss": None}, FACTS),
        ({"eval_mlm_loss": float("nan")}, FACTS),
    ],
)
def test_nothing_is_marked_where_nothing_can_be_compared(two, second, facts):
    results = {"eval_mlm_loss": 4.0, "eval_nsp_accuracy": 0.6, "train_seconds": 30.0} | second
    text = text_of(two(results=results, facts=facts))
    assert "**" not in text.replace("**Attention:**", "")
    assert "Bold:" not in text
    assert ("| mlm loss | 5.0000 | n/a |" in text) is bool(second)
    assert (
        "No report.json of two: whether the held-out data was the same is not known." in text
    ) is (facts is None)
    assert ("not measured on the same data" in text) is (facts not in (None, FACTS))


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        # A store of fewer pairs than either run asks for, and one that grew in its training part
        # alone.
        ("same", {"measured_on": "same", "identity": {"store": "larger", "tokenizer": "t"}}, None),
        (
            "same",
            {"measured_on": "other", "identity": {"store": "other", "tokenizer": "t"}},
            "(store, max_eval_pairs differ)",
        ),
        # Of the same store and settings, whose files were made anew.
        ("same", {"measured_on": "other"}, "(max_eval_pairs differ)"),
        # An older run did not keep it.
        (None, {"measured_on": "same"}, "(max_eval_pairs differ)"),
    ],
)
def test_runs_are_compared_by_the_inputs_that_were_measured(make_run_folder, first, second, named):
    results = {"eval_mlm_loss": 5.0, "eval_pairs": 34.0}
    own = {"facts": FACTS | {"measured_on": first}, "settings": "max_eval_pairs: 1000\n"}
    other = {"facts": FACTS | second, "settings": "max_eval_pairs: 2000\n"}
    folders = [make_run_folder("one", results=results, **own)]
    folders.append(make_run_folder("two", results=results | {"eval_mlm_loss": 4.0}, **other))
    text = text_of(folders)
    assert ("not measured on the same data" in text) is (named is not None)
    assert ("**4.0000**" in text) is (named is None)
    assert named is None or named in text


COSTS = {"tokens_per_second": 5.0, "peak_memory_mb": 9.0, "data_wait_share": 0.5}
COSTS |= {
    "eval_unigram_loss": 9.0,
    "eval_majority_accuracy": 0.9,
    "eval_unigram_accuracy": 0.1,
    "eval_masked_tokens": 9.0,
}


def test_costs_and_values_of_the_data_are_never_marked_and_those_of_an_evaluation_left_out(
    make_run_folder,
):
    own = COSTS | {
        "eval_runtime": 9.0,
        "eval_samples_per_second": 9.0,
        "eval_steps_per_second": 3.0,
    }
    values = [own, {name: value / 2 for name, value in own.items()}]
    text = text_of(
        [make_run_folder(str(n), results=each, facts=FACTS) for n, each in enumerate(values)]
    )
    assert "**" not in text
    assert text.split("## Settings")[0].count("\n| ") == 2 + len(COSTS)  # with its head
    assert "| fraction of the time waiting for data | 0.5000 | 0.2500 |" in text


@pytest.mark.parametrize(
    ("first", "second", "is_marked"),
    [
        (
            {"eval_nsp_accuracy": 0.60, "eval_pairs": 100.0},
            {"eval_nsp_accuracy": 0.65, "eval_pairs": 100.0},
            False,
        ),
        (
            {"eval_nsp_accuracy": 0.60, "eval_pairs": 9e4},
            {"eval_nsp_accuracy": 0.65, "eval_pairs": 9e4},
            True,
        ),
        (
            {"eval_f1": 0.8, "intervals": {"f1": [0.76, 0.84]}},
            {"eval_f1": 0.85, "intervals": {"f1": [0.81, 0.89]}},
            False,
        ),
        (
            {"eval_f1": 0.8, "intervals": {"f1": [0.76, 0.84]}},
            {"eval_f1": 0.86, "intervals": {"f1": [0.82, 0.9]}},
            True,
        ),
        ({"eval_f1": 0.8}, {"eval_f1": 0.81}, True),  # an older run has no interval
    ],
)
def test_a_figure_is_marked_only_where_the_rows_do_not_explain_its_lead(
    make_run_folder, first, second, is_marked
):
    folders = [
        make_run_folder(str(n), results=each, facts=FACTS) for n, each in enumerate((first, second))
    ]
    assert ("**" in text_of(folders)) is is_marked


PHASES = "max_seq_length: 128\nmlm_probability: 0.15\nphase2_steps: {}\nphase2_max_seq_length: {}\n"


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (
            PHASES.format(0, 512),
            PHASES.format(10, 512),
            "(max_seq_length, max_predictions_per_seq differ)",
        ),
        (
            PHASES.format(10, 512),
            PHASES.format(10, 256),
            "(max_seq_length, max_predictions_per_seq differ)",
        ),
        (
            PHASES.format(10, 512),
            PHASES.format(10, 512) + "phase2_max_predictions_per_seq: 60\n",
            "_per_seq differ)",
        ),
        (PHASES.format(0, 512), PHASES.format(0, 256) + "max_predictions_per_seq: 20\n", None),
        (PHASES.format(10, 512), PHASES.format(20, 512).replace("128", "64"), None),
    ],
    ids=["one-phase", "other-length", "other-limit", "no-second-phase", "other-first-phase"],
)
def test_runs_in_phases_are_measured_as_their_last_one(make_run_folder, first, second, named):
    folders = [
        make_run_folder(name, facts=FACTS, settings=text)
        for name, text in (("one", first), ("two", second))
    ]
    text = text_of(folders)
    assert ("not measured on the same data" in text) is (named is not None)
    assert named is None or named in text


def from_instances(
    make_run_folder, name, train, validation, path="/data/held_out.tfrecord", length=128
):
    files = {"train": {"fingerprint": train}} | (
        {"validation": {"fingerprint": validation}} if validation else {}
    )
    settings = (
        f"train_file: [/data/{train}.tfrecord]\nvalidation_file: [{path}]\nmax_seq_length: "
        f"{length}\n"
    )
    return make_run_folder(
        name,
        results={"eval_mlm_loss": 5.0, "data": {"instance_files": files}},
        facts={"kind": "pretraining", "identity": {"instances": train, "tokenizer": "t"}},
        settings=settings,
    )


@pytest.mark.parametrize(
    ("second", "is_other"),
    [
        (("b", "x"), False),
        (
            ("b", "x", "/elsewhere/held_out.tfrecord", 512),
            False,
        ),  # the length is that of the instances
        (("a", "y"), True),  # the file was written anew
        (("a", None), False),  # an older run, the same path
        (("a", None, "/elsewhere/held_out.tfrecord"), True),
    ],
)
def test_runs_from_instance_files_are_known_by_the_held_out_ones(make_run_folder, second, is_other):
    folders = [
        from_instances(make_run_folder, "one", "a", "x"),
        from_instances(make_run_folder, "two", *second),
    ]
    text = text_of(folders)
    assert ("not measured on the same data (validation_file differ)" in text) is is_other
    assert ("not measured on the same data" in text) is is_other


def test_other_machines_are_said_aloud(two):
    results = {"machine": {"processor": "another", "gpu": None}}
    assert "had different machines" in text_of(two(results=results))


def finetuned(make_run_folder, name, task, f1=0.5, examples=10, split_name="validation", **more):
    score = {"precision": 0.5, "recall": 0.5, "support": 5, "predicted": 5}
    split = {
        "name": "validation",
        "suffix": "",
        "examples": 10,
        "looked_at": 10,
        "labels": ["a", "b"],
    }
    facts = {"kind": "finetuning", "task": task, "form": "single_label_classification"}
    facts |= {"splits": [split | {"classes": [score | {"f1": f1}, score | {"f1": 0.25}]}]}
    splits = {"train": {"examples": 90, "sha256": name}, split_name: {"examples": examples} | more}
    results = {"task": task, "eval_f1": f1, "splits": splits}
    own = f"name: {task}\nkind: sequence_classification\ntext_columns: text\nlabels: [a, b]\n"
    own += (
        f"files: {{train: train.csv, {split_name}: dev.csv}}\nvalidation_splits: [{split_name}]\n"
    )
    text = None if split_name == "validation" else own
    return make_run_folder(
        name, results=results, facts=facts, history=[{"step": 1, "loss": 1.0}], task=text
    )


def test_scores_of_the_classes_stand_beside_each_other(make_run_folder):
    folders = [
        finetuned(make_run_folder, name, "mrpc", f1) for name, f1 in (("one", 0.5), ("two", 0.75))
    ]
    lines = text_of(folders).splitlines()
    assert "| a | 0.500 | 0.750 |" in lines  # of so few rows nobody knows which is better
    assert "| b | 0.250 | 0.250 |" in lines


@pytest.mark.parametrize(
    ("first", "second", "is_other"),
    [
        ({"sha256": "a"}, {"sha256": "a"}, False),
        ({"sha256": "a"}, {"sha256": "b"}, True),
        ({"sha256": "a"}, {}, False),  # an older run
        ({"sha256": "a"}, {"examples": 20}, True),
    ],
)
@pytest.mark.parametrize("split", ["validation", "dev"])
def test_other_examples_are_known_by_their_hash(make_run_folder, split, first, second, is_other):
    folders = [
        finetuned(make_run_folder, name, "mine", split_name=split, **more)
        for name, more in (("one", first), ("two", second))
    ]
    assert ("(the validation examples differ)" in text_of(folders)) is is_other


def test_what_cannot_be_compared_is_refused(make_run_folder, tmp_path):
    mrpc, rte = finetuned(make_run_folder, "mrpc", "mrpc"), finetuned(make_run_folder, "rte", "rte")
    bert = make_run_folder("bert", facts=FACTS)
    (tmp_path / "empty").mkdir()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    (tmp_path / "link").symlink_to(mrpc)
    for folders, message in (
        (
            [mrpc, rte],
            "mrpc is a fine-tuning run on mrpc, rte is a fine-tuning run on rte; their metrics "
            "cannot be",
        ),
        ([mrpc, bert], "bert is a pre-training run"),
        ([mrpc], "runs: 1 given; give 2 to 8"),
        ([mrpc] * 9, "runs: 9 given"),
        ([mrpc, tmp_path / "link"], "is given twice"),
        ([mrpc, tmp_path / "empty"], "is no run"),
        ([mrpc, tmp_path / "nowhere"], "no folder"),
        ([mrpc, tmp_path / "sweep"], "is a sweep of many runs; give one of them"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            read_runs(folders)


def test_runs_of_one_name_are_told_apart_by_their_folders(make_run_folder):
    folders = [finetuned(make_run_folder, f"{place}/run", "mrpc") for place in "ab"]
    assert list(read_runs(folders)) == [str(folder) for folder in folders]
