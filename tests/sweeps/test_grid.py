import math
import re
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.field_types import read_text
from bert_recipes.sweeps.flags import check_flags, run_fields, split_flags
from bert_recipes.sweeps.grid import Combination, Run, Summary, choose_best, choose_seeds, expand_grid
from bert_recipes.sweeps.grid_file import read_grid
from bert_recipes.sweeps.ranges import read_range
from bert_recipes.sweeps.runs import read_sweep
from bert_recipes.sweeps.search import _combination


FIELDS = {"learning_rate": float, "num_train_epochs": float, "max_steps": int, "precision": str, "seed": int}


@pytest.fixture
def configs(repository):
    return repository / "recipes" / "configs" / "sweep"


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write_file


def summary(name, *values):
    runs = [Run(seed, Path(name) / f"seed-{seed}", value) for seed, value in enumerate(values, 1)]
    return Summary(Combination(name, {}), tuple(runs))


def test_the_papers_sweep_is_four_learning_rates_at_batch_32_and_3_epochs(configs):
    """Devlin et al. 2019, section 4.1: batch 32, 3 epochs, the best of 5e-5, 4e-5, 3e-5 and 2e-5 on the Dev set."""
    combinations = expand_grid(read_sweep("paper", configs, []))
    assert [float(c.settings["learning_rate"]) for c in combinations] == [5e-5, 4e-5, 3e-5, 2e-5]
    assert all(c.settings["global_train_batch_size"] == "32" for c in combinations)
    assert all(c.settings["num_train_epochs"] == "3" for c in combinations)
    assert combinations[0].name == "learning_rate-5e-5"


def test_the_appendix_sweep_is_every_combination_of_its_three_ranges(configs):
    """Devlin et al. 2019, appendix A.3: batch 16, 32; learning rate 5e-5, 3e-5, 2e-5; epochs 2, 3, 4."""
    combinations = expand_grid(read_sweep("appendix", configs, []))
    settings = {
        (
            int(c.settings["global_train_batch_size"]),
            float(c.settings["learning_rate"]),
            int(c.settings["num_train_epochs"]),
        )
        for c in combinations
    }
    assert settings == {(b, r, e) for b in (16, 32) for r in (5e-5, 3e-5, 2e-5) for e in (2, 3, 4)}
    assert len({c.name for c in combinations}) == len(combinations) == 18


def test_the_last_field_varies_fastest_and_values_stay_as_they_were_written(write):
    grid = read_grid(write("precision: [fp32, bf16]\nlearning_rate: [5.0e-5, 3e-5]\nmax_steps: 7\n"), FIELDS)
    combinations = expand_grid(grid)
    assert [c.flags() for c in combinations][1] == [
        "--precision", "fp32", "--learning_rate", "3e-5", "--max_steps", "7",
    ]  # fmt: skip
    assert combinations[2].name == "precision-bf16_learning_rate-5.0e-5"


def test_one_combination_has_a_name_too(write):
    assert [c.name for c in expand_grid(read_grid(write("max_steps: 7\n"), FIELDS))] == ["settings"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lerning_rate: [1e-5]\n", ("line 1", "lerning_rate", "learning_rate")),
        ("learning_rate: [1e-5, fast]\n", ("learning_rate", "'fast'", "a number")),
        ("learning_rate: [1e-5, 1.0e-5]\n", ("same value", "1e-5 and 1.0e-5")),
        ("learning_rate: []\n", ("learning_rate", "no value")),
        ("seed: [1, 2]\n", ("seed", "--num_seeds")),
        ("learning_rate: [1e-5, 1e-4, log]\n", ("range", "--num_trials")),
        ("max_steps: [1.5, 2]\n", ("max_steps", "'1.5'", "whole number")),
        ("# nothing\n", ("no settings",)),
        ("learning_rate: [1e-5, nan]\n", ("line 1", "learning_rate", "nan is no number")),
        ("learning_rate: [1e-5, [2e-5]]\n", ("learning_rate", "field: [value, value]")),
        ("max_steps: 5\nlearning_rate:\n", ("line 2", "learning_rate", "no value")),
    ],
)
def test_a_wrong_sweep_file_is_one_line_that_names_file_and_field(write, text, words):
    with pytest.raises(InputError) as error:
        read_grid(write(text), FIELDS)
    assert all(word in str(error.value) for word in ("mine.yaml", *words))
    assert "\n" not in str(error.value)


def test_values_of_every_type_keep_their_words_and_quotes_are_no_part_of_keys(write):
    text = 'freeze_encoder: [true, false]\n"max_steps": [7, 8]\ndo_predict: true\ndropout: [null, 0.1]\n'
    text += "lr_scheduler_type: [cosine, constant, linear]\n"
    assert read_grid(write(text), run_fields()) == {
        "freeze_encoder": ["true", "false"],
        "max_steps": ["7", "8"],
        "do_predict": ["true"],
        "dropout": ["null", "0.1"],
        "lr_scheduler_type": ["cosine", "constant", "linear"],
    }


def test_different_settings_have_different_folders():
    names = [choice.name for choice in expand_grid({"data_dir": ["a/b", "a-b", "a b", "a_b"]})]
    assert len(set(names)) == 4
    assert names[1] == "data_dir-a-b"
    assert all(re.fullmatch(r"data_dir-a-b(-[0-9a-f]{6})?", name) for name in names)


@pytest.mark.parametrize(
    ("field", "values", "drawn", "text"),
    [
        ("max_steps", ["1000", "20000", "linear"], 12345, "12345"),
        ("num_train_epochs", ["2", "5", "int"], 3, "3"),
        ("num_train_epochs", ["10", "20000", "linear"], 12345.6, "12300"),
        ("learning_rate", ["1e-5", "1e-4", "log"], 2.3456e-5, "2.35e-05"),
    ],
)
def test_a_number_of_a_search_is_written_as_its_field_reads_it(field, values, drawn, text):
    optuna = pytest.importorskip("optuna")
    found = read_range(values, FIELDS[field])
    number = found.suggest(optuna.trial.FixedTrial({field: drawn}), field)
    combination = _combination({field: found}, {field: number})
    assert combination.settings == {field: text}
    assert read_text(FIELDS[field], text) == pytest.approx(drawn, rel=0.01)


@pytest.mark.parametrize(
    "values", ["[1e-4, 1e-5, log]", "[0, 1e-5, log]", "[a, b, linear]", "[1, 2.5, int]", "[1, nan, log]"]
)
def test_an_impossible_range_is_refused(write, values):
    with pytest.raises(InputError, match="learning_rate"):
        read_grid(write(f"learning_rate: {values}\n"), FIELDS, with_ranges=True)


def test_an_unknown_sweep_names_those_that_there_are(configs):
    with pytest.raises(InputError, match="appendix, paper, search_example"):
        read_sweep("papr", configs, [])


def test_best_is_the_greatest_median_and_not_the_luckiest_run():
    lucky, steady = summary("lucky", 0.99, 0.50, 0.52), summary("steady", 0.80, 0.79, 0.81)
    assert choose_best([lucky, steady]) is steady
    assert steady.best_run.seed == 3
    assert steady.median == 0.80
    assert steady.deviation == pytest.approx(0.01)


def test_with_one_seed_best_is_the_greatest_figure():
    """The paper's rule, section 4.1."""
    assert choose_best([summary("a", 0.7), summary("b", 0.9), summary("c", 0.8)]).combination.name == "b"
    assert summary("a", 0.7).deviation is None


def test_of_ties_the_first_combination_and_the_first_seed_win():
    first, second = summary("first", 0.5, 0.7, 0.7), summary("second", 0.7, 0.7, 0.1)
    assert choose_best([first, second]) is first
    assert first.best_run.seed == 2


def test_a_diverged_run_is_worse_than_every_number():
    diverged, poor = summary("diverged", math.nan, 0.9, math.nan), summary("poor", -0.2, -0.3, -0.1)
    assert choose_best([diverged, poor]) is poor
    assert diverged.best_run.seed == 2
    assert diverged.deviation is None


def test_flags_are_parted_with_all_their_values():
    argv = ["--seeds", "3", "5", "--task", "rte", "--fp16", "--learning-rate=1e-5", "--rte", "--num_train_epochs 5"]
    own, others = split_flags(argv, ["seeds", "rte"])
    assert own == ["--seeds", "3", "5", "--rte", "--num_train_epochs 5"]
    assert others == ["--task", "rte", "--fp16", "--learning-rate=1e-5"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--seed", "3"], "--num_seeds"),
        (["--resume_from_checkpoint=last"], "goes on by itself"),
        (["--learning-rate", "1e-5"], "in the sweep and on the command line"),
    ],
)
def test_what_the_sweep_decides_cannot_be_given(argv, words):
    with pytest.raises(InputError, match=words):
        check_flags(argv, ["learning_rate"])


def test_seeds_are_a_number_or_a_list():
    assert choose_seeds(3, None) == [1, 2, 3]
    assert choose_seeds(1, [7, 5]) == [7, 5]
    with pytest.raises(InputError, match="num_seeds is 0"):
        choose_seeds(0, None)
    with pytest.raises(InputError, match="holds one twice"):
        choose_seeds(1, [5, 5])
