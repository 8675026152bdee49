"""Runs beside each other: what differs, what is better, and what cannot be compared."""

import json
import re

import pytest

from bert_recipes.errors import InputError
from bert_recipes.reports.compare import compare_runs, read_runs


FACTS = {"kind": "pretraining", "measured_on": "inputs"}
SETTINGS = "learning_rate: {}\nseed: 1\nmax_seq_length: 128\noutput_dir: runs/{}\n"
HISTORY = [
    {
        "step": step,
        "mlm_loss": 9.0 - step,
        "eval_mlm_loss": 8.0 - step,
    }
    for step in (1, 2, 3)
]


@pytest.fixture
def pair_of(make_run_folder):
    """Two pre-training runs with the same held-out inputs, without curves."""

    def make(
        first,
        second,
        facts=FACTS,
        history=(),
    ):
        files = {"history": list(history)}
        settings = SETTINGS.format("1.0e-4", "one")
        one = make_run_folder(
            "one",
            results=first,
            facts=FACTS,
            settings=settings,
            **files,
        )
        settings = SETTINGS.format("2.0e-4", "two")
        two = make_run_folder(
            "two",
            results=second,
            facts=facts,
            settings=settings,
            **files,
        )
        return [one, two]

    return make


def text_of(folders):
    return compare_runs(read_runs(folders))["report.md"].decode()


FIRST = {
    "eval_mlm_loss": 5.0,
    "eval_nsp_accuracy": 0.6,
    "train_seconds": 10.0,
    "eval_pairs": 100.0,
    "eval_unigram_loss": 9.0,
    "eval_runtime": 9.0,
    "data_wait_share": 0.5,
}
SECOND = {
    **FIRST,
    "eval_mlm_loss": 4.0,
    "train_seconds": 30.0,
    "eval_pairs": 200.0,
    "eval_unigram_loss": 8.0,
    "data_wait_share": 0.25,
}


def test_settings_metrics_and_curves_stand_beside_each_other(pair_of):
    files = compare_runs(read_runs(pair_of(FIRST, SECOND, history=HISTORY)))
    text, page = files["report.md"].decode(), files["report.html"].decode()
    table = re.search(r"\| setting .*?\n\n", text, re.DOTALL)[0].splitlines()
    assert table[0] == "| setting | one | two |"
    assert [line for line in table[2:] if line] == ["| learning_rate | 1.0e-4 | 2.0e-4 |"]
    assert "Attention" not in text

    for line in (
        "| mlm loss | 5.0000 | **4.0000** |",
        "| nsp accuracy | 0.6000 | 0.6000 |",  # alike
        "| held-out inputs measured | 100 | 200 |",  # neither good nor bad
        "| unigram loss | 9.0000 | 8.0000 |",  # of the data, not of the run
        "| train seconds | 10 | 30 |",  # what a run costs does not make it better
        "| fraction of the time waiting for data | 0.5000 | 0.2500 |",
    ):
        assert line in text.splitlines()
    assert "runtime" not in text
    assert "Bold: better, and by more than the 95% intervals" in text
    plots = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(plots) == 2  # held out and training

    for plot in plots:
        assert re.search(r">one</text>.*>two</text>", plot, re.DOTALL)


@pytest.mark.parametrize(
    ("loss", "facts"),
    [
        (4.0, {**FACTS, "measured_on": "others"}),
        (4.0, None),  # nobody knows
        (None, FACTS),
        (float("nan"), FACTS),
    ],
)
def test_nothing_is_marked_where_nothing_can_be_compared(pair_of, loss, facts):
    text = text_of(pair_of(FIRST, {**SECOND, "eval_mlm_loss": loss}, facts))
    assert "**" not in text.replace("**Attention:**", "")
    assert "Bold:" not in text
    assert ("| mlm loss | 5.0000 | n/a |" in text) is (loss != 4.0)
    has_warning = "Nothing shows that the runs were measured on the same data" in text
    assert has_warning is (facts != FACTS)


@pytest.mark.parametrize(
    ("first", "second", "is_marked"),
    [
        ({"eval_nsp_accuracy": 0.6}, {"eval_nsp_accuracy": 0.65, "eval_pairs": 100.0}, False),
        ({"eval_nsp_accuracy": 0.6}, {"eval_nsp_accuracy": 0.65, "eval_pairs": 9e4}, True),
        ({"eval_f1": 0.8, "intervals": {"f1": [0.76, 0.84]}}, {"eval_f1": 0.83}, False),
        ({"eval_f1": 0.8, "intervals": {"f1": [0.76, 0.84]}}, {"eval_f1": 0.85}, True),
        # An interval that is cut off at 1 is as wide above.
        ({"eval_f1": 0.99, "intervals": {"f1": [0.96, 1.0]}}, {"eval_f1": 0.965}, False),
        ({"eval_f1": 0.8}, {"eval_f1": 0.81}, True),  # without an interval
    ],
)
def test_a_figure_is_marked_only_where_the_rows_do_not_explain_its_lead(
    pair_of,
    first,
    second,
    is_marked,
):
    assert ("**" in text_of(pair_of(first, second))) is is_marked


@pytest.mark.parametrize(
    ("objective", "figure", "is_ranked"),
    [
        ("electra", "eval_disc_accuracy", False),
        ("electra", "eval_mlm_accuracy", True),
        ("tinybert", "eval_hidden_loss", False),
        ("mlm", "eval_old_mlm_loss", False),
        ("mlm", "eval_mlm_accuracy", True),
    ],
)
def test_what_a_run_measures_on_data_or_a_teacher_of_its_own_is_not_ranked(
    pair_of, objective, figure, is_ranked
):
    folders = pair_of({figure: 0.5}, {figure: 0.9})
    for folder in folders:
        with (folder / "run.yaml").open("a") as file:
            file.write(f"objective: {objective}\n")
    assert ("**0." in text_of(folders)) is is_ranked


def finetuned(make_run_folder, name, task, split="validation", **entry):
    results = {
        "task": task,
        "eval_f1": 0.5,
        "splits": {"train": {"sha256": name}, split: entry},
    }
    text = f"name: {task}\nkind: sequence_classification\ntext_columns: text\nlabels: [a, b]\n"
    text += f"files: {{train: train.csv, {split}: dev.csv}}\nvalidation_splits: [{split}]\n"
    return make_run_folder(
        name,
        results=results,
        facts={"kind": "finetuning"},
        task=text,
    )


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ({"sha256": "a"}, {"sha256": "a"}, True),
        ({"sha256": "a"}, {"sha256": "b"}, False),
        ({"sha256": "a"}, {}, False),  # an older run
    ],
)
def test_other_examples_are_known_by_their_hash(
    make_run_folder,
    first,
    second,
    is_same,
):
    one = finetuned(
        make_run_folder,
        "one",
        "mine",
        "dev",
        **first,
    )
    folders = [
        one,
        finetuned(
            make_run_folder,
            "two",
            "mine",
            "dev",
            **second,
        ),
    ]
    assert ("measured on the same data" not in text_of(folders)) is is_same


def test_what_cannot_be_compared_is_refused(make_run_folder, tmp_path):
    mrpc, rte = finetuned(make_run_folder, "mrpc", "mrpc"), finetuned(make_run_folder, "rte", "rte")
    bert = make_run_folder("bert", facts=FACTS)
    (tmp_path / "link").symlink_to(mrpc)
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "sweep.json").write_text("{}")
    for folders, message in (
        ([mrpc, rte], "mrpc is a fine-tuning run on mrpc, rte is a fine-tuning run on rte; their"),
        ([mrpc, bert], "bert is a pre-training run"),
        ([mrpc, sweep], f"is a sweep of many runs; give one of them, for example {sweep}/best"),
        ([mrpc], "runs: 1 given; give 2 folders"),
        ([mrpc, tmp_path / "link"], "is given twice"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            read_runs(folders)


def test_runs_of_one_name_are_told_apart_by_their_folders(make_run_folder):
    folders = [finetuned(make_run_folder, f"{place}/run", "mrpc") for place in "ab"]
    assert list(read_runs(folders)) == [str(folder) for folder in folders]


# Seeds


def seeded(make_run_folder, name, rate, seed, loss, replicates=None):
    jackknife = {"mlm_loss": replicates} if replicates else {}
    return make_run_folder(
        name,
        results={"eval_mlm_loss": loss, "eval_unigram_loss": 9.0, "jackknife": jackknife},
        facts=FACTS,
        settings=f"learning_rate: {rate}\nseed: {seed}\noutput_dir: runs/{name}\n",
        history=HISTORY,
    )


@pytest.fixture
def seeds_of_two_rates(make_run_folder):
    """Three seeds of each rate; the second one is better by 0.1, 0.2 and 0.3."""
    folders = []
    for seed, loss in ((1, 4.0), (2, 4.1), (3, 4.5)):
        folders.append(seeded(make_run_folder, f"low_seed{seed}", "1e-4", seed, loss))
        better = loss - seed / 10
        folders.append(seeded(make_run_folder, f"high_seed{seed}", "2e-4", seed, better))
        for folder in folders[-2:]:  # pushed to branches of one repository
            with (folder / "run.yaml").open("a", encoding="utf-8") as file:
                file.write(f"hub_revision: seed-{seed}\n")
    return folders


def test_seeds_of_the_same_settings_share_a_column_and_are_paired(seeds_of_two_rates):
    files = compare_runs(read_runs(seeds_of_two_rates))
    lines = files["report.md"].decode().splitlines()
    assert "| metric | low (3 seeds) | high (3 seeds) |" in lines
    # Student's t of two degrees of freedom: 4.303.
    assert "| mlm loss | 4.2000 ± 0.6572 | 4.0000 ± 0.4303 |" in lines
    assert "| learning_rate | 1e-4 | 2e-4 |" in lines
    assert not any(line.startswith("| seed |") for line in lines)
    paired = "| mlm loss | high - low | 3 | -0.2000 | -0.4484 to +0.0484 | not known |"
    assert paired in lines
    assert not any("unigram loss | high" in line for line in lines)
    # Six curves, two names.
    held_out = re.findall(r"<figure.*?</figure>", files["report.html"].decode(), re.DOTALL)[0]
    assert held_out.count(">low</text>") == held_out.count(">high</text>") == 1


def test_rows_widen_the_interval_over_seeds(make_run_folder):
    folders = []
    for seed in (1, 2):
        for rate, shift in (("1e-4", 0.0), ("2e-4", -0.2)):
            replicates = [4.0 + shift * (1 + row / 20) for row in range(20)]
            name = f"{rate}_{seed}"
            folders.append(
                seeded(make_run_folder, name, rate, seed, 4.0 + shift + seed / 100, replicates)
            )
    text = text_of(folders)
    row = re.search(r"\| mlm loss \| 2e-4 - 1e-4 \| 2 \| -0.2000 \| (.*?) \| (.*?) \|", text)
    assert row[1] == "not known"  # both seeds are alike
    low, high = map(float, row[2].split(" to "))
    assert low < -0.21
    assert high > -0.19


def test_a_seed_that_diverged_is_not_left_out(make_run_folder):
    folders = []
    for seed in (1, 2, 3):
        folders.append(seeded(make_run_folder, f"low_{seed}", "1e-4", seed, 4.0 + seed / 10))
        loss = float("nan") if seed == 3 else 3.0
        folders.append(seeded(make_run_folder, f"high_{seed}", "2e-4", seed, loss))
    text = text_of(folders)
    assert "| mlm loss | 4.2000 ± 0.2484 | n/a |" in text
    assert "| mlm loss | high - low | 3 | n/a | n/a | n/a |" in text


def test_seeds_of_one_side_alone_are_not_compared(make_run_folder):
    folders = [
        seeded(make_run_folder, "low_1", "1e-4", 1, 4.0),
        seeded(make_run_folder, "low_2", "1e-4", 2, 4.1),
        seeded(make_run_folder, "high_1", "2e-4", 1, 3.0),
    ]
    assert "no configuration has two seeds in common with the first one" in text_of(folders)


def test_what_differs_between_the_seeds_of_a_column_is_shown(make_run_folder):
    folders = [
        seeded(make_run_folder, "low_1", "1e-4", 1, 4.0),
        seeded(make_run_folder, "low_2", "1e-4", 2, 4.1),
    ]
    assert "None: settings, machine and versions are the same" in text_of(folders)
    results = json.loads((folders[1] / "all_results.json").read_text())
    results["machine"]["torch"] = "2.11.0"
    (folders[1] / "all_results.json").write_text(json.dumps(results))
    assert "| machine: torch | 2.11.0, 2.13.0 |" in text_of(folders)
    # Another corpus is another configuration.
    results["data"] = {"fingerprint": "another"}
    (folders[1] / "all_results.json").write_text(json.dumps(results))
    text = text_of(folders)
    assert "| metric | low_1 | low_2 |" in text
    assert "| training data | not set | another |" in text


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (("sst2_seed1", "sst2_seed2"), "sst2"),
        (("seed1_lr_2e-4", "seed2_lr_2e-4"), "lr_2e-4"),
        (("lr_2e-1", "lr_2e-2"), "lr_2e"),  # nothing tells that it is no seed
        (("a", "b"), "a"),
    ],
)
def test_a_column_has_the_name_of_its_runs_without_the_seed(make_run_folder, names, group):
    folders = []
    for seed, name in enumerate(names, start=1):
        folders.append(seeded(make_run_folder, name, "1e-4", seed, 4.0 + seed))
    assert f"| metric | {group} (2 seeds) |" in text_of(folders)


@pytest.mark.parametrize(("sizes", "is_known"), [((64, 64), True), ((64, 32), False)])
def test_batches_of_another_size_have_other_groups_of_rows(make_run_folder, sizes, is_known):
    folders = []
    for seed in (1, 2):
        for rate, size in zip(("1e-4", "2e-4"), sizes, strict=True):
            loss = 4.0 + seed / 100 + (seed / 10 if rate == "1e-4" else 0.0)
            replicates = [loss + row / 1000 for row in range(20)]
            folder = seeded(make_run_folder, f"{rate}_{seed}", rate, seed, loss, replicates)
            with (folder / "run.yaml").open("a") as file:
                file.write(f"per_device_eval_batch_size: {size}\n")
            folders.append(folder)
    row = re.search(r"\| mlm loss \| 2e-4 - 1e-4 \| 2 \| \S+ \| .*? \| (.*?) \|", text_of(folders))
    assert (row[1] != "not known") is is_known


def test_one_seed_twice_is_not_a_mean(make_run_folder):
    folders = [seeded(make_run_folder, name, "1e-4", 1, 4.0) for name in ("here", "there")]
    assert "| metric | here | there |" in text_of(folders)
    folders.append(seeded(make_run_folder, "other", "1e-4", 2, 4.0))
    assert "| metric | here (2 seeds) | there |" in text_of(folders)


def test_a_run_with_the_name_of_a_group_keeps_it(make_run_folder):
    folders = [
        seeded(make_run_folder, "sst2_seed1", "1e-4", 1, 4.0),
        seeded(make_run_folder, "sst2_seed2", "1e-4", 2, 4.0),
        seeded(make_run_folder, "sst2", "2e-4", 1, 3.0),
    ]
    assert "| metric | sst2_seed1 (2 seeds) | sst2 |" in text_of(folders)
    assert "| metric | sst2 | sst2_seed2 (2 seeds) |" in text_of(folders[::-1])


def test_a_metric_that_is_undefined_without_some_rows_has_no_interval_over_rows(make_run_folder):
    folders = []
    for seed in (1, 2):
        for rate, loss in (("1e-4", 4.0), ("2e-4", 3.0)):
            replicates = [loss, None] if seed == 1 else [loss, loss]
            name = f"{rate}_{seed}"
            folders.append(seeded(make_run_folder, name, rate, seed, loss, replicates))
    row = "| mlm loss | 2e-4 - 1e-4 | 2 | -1.0000 | not known | not known |"
    assert row in text_of(folders)


def test_settings_have_a_limit_but_seeds_have_none(make_run_folder):
    folders = []
    for number in range(9):
        folders.append(seeded(make_run_folder, f"low_seed{number}", "1e-4", number, 4.0))
    assert "| metric | low (9 seeds) |" in text_of(folders)
    for number in range(2, 10):
        folders.append(seeded(make_run_folder, f"rate{number}", f"{number}e-4", 1, 4.0))
    with pytest.raises(InputError, match="runs: 9 different configurations given; allowed: 8"):
        text_of(folders)
