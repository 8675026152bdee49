"""Which layers make which vector."""

import pytest
import torch

from bert_recipes.errors import InputError
from bert_recipes.features.columns import COLUMN_NAMES, Column, check_google_layers, choose_columns


HIDDEN = {number: torch.full((3, 2), 10.0**number) for number in range(7)}


@pytest.mark.parametrize(
    ("wanted", "layers"),
    [
        ("last", (6,)),
        ("second_to_last", (5,)),
        ("sum_last_four", (3, 4, 5, 6)),
        ("concat_last_four", (3, 4, 5, 6)),
        ("sum_all", (1, 2, 3, 4, 5, 6)),
        ("embeddings", (0,)),
        ("-1", (6,)),
        ("-6", (1,)),
        ("0", (0,)),
        ("2", (2,)),
    ],
)
def test_names_are_those_of_table_7_and_numbers_those_of_transformers(wanted, layers):
    """BERT, Devlin et al. 2019, Table 7; `hidden_states` of transformers begin with the embeddings."""
    (column,) = choose_columns([wanted], "none", 6)
    assert column.layers == layers


def test_every_name_can_be_chosen():
    assert [column.name for column in choose_columns(COLUMN_NAMES, "none", 6)] == list(COLUMN_NAMES)


def test_layers_are_summed_put_side_by_side_or_kept_apart():
    last_two = choose_columns(["-1", "-2"], "none", 6)
    assert [(column.name, column.layers) for column in last_two] == [("layer_6", (6,)), ("layer_5", (5,))]
    (summed,) = choose_columns(["-1", "-2"], "sum", 6)
    assert torch.equal(summed.take(HIDDEN), torch.full((3, 2), 1_100_000.0))
    (joined,) = choose_columns(["-2", "1"], "concat", 6)
    assert joined.take(HIDDEN).tolist() == [[1e5, 1e5, 10.0, 10.0]] * 3  # in the order that was asked for
    assert (joined.size(2), summed.size(2)) == (4, 2)
    assert (joined.name, summed.name) == ("concat_5_1", "sum_6_5")


def test_half_precision_states_are_summed_in_full():
    states = {number: torch.full((1, 1), 40_000.0, dtype=torch.float16) for number in (1, 2)}
    assert Column("x", (1, 2), "sum").take(states).item() == 80_000


@pytest.mark.parametrize(
    ("wanted", "join", "message"),
    [
        (["lats"], "none", "layers: 'lats' is no layer; allowed: last, second_to_last"),
        (["weighted_sum_last_four"], "none", "with equal ones it is sum_last_four"),
        (["7"], "none", "layers: 7 is given, the model has 6: -6 to 6"),
        (["-7"], "none", "layers: -7 is given"),
        (["-1", "6"], "none", "names a layer twice"),
        (["last", "last"], "none", "names a layer twice"),
        (["last", "-2"], "sum", "join is 'sum'; it is for two or more"),
    ],
)
def test_a_layer_that_is_not_there_is_an_error(wanted, join, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        choose_columns(wanted, join, 6)


def test_a_model_with_too_few_layers_is_named():
    with pytest.raises(InputError, match="'Concat Last Four Hidden' needs 4 layers, the model has 2"):
        choose_columns(["concat_last_four"], "none", 2)


@pytest.mark.parametrize("wanted", [["last"], ["0"], ["3"], ["-0"], ["-x"]])
def test_the_original_counts_from_the_last_layer_only(wanted):
    with pytest.raises(InputError, match="google_jsonl counts from the last layer"):
        check_google_layers(wanted)
    check_google_layers(["-1", "-12"])
