import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.sequence_classification import SequenceClassification, pool_logits
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Split, TextExample
from bert_recipes.tokenization.loading import load_tokenizer


def make_kind(folder, task, label2id, **settings):
    return SequenceClassification(
        task, load_tokenizer(folder), TaskArguments(task="mrpc", **settings), label2id
    )


def split(*examples):
    return Split(name="validation", examples=examples, source="made", num_rows=len(examples))


MULTI = replace(
    get_task("mrpc"),
    labels=("red", "green", "blue"),
    problem_type="multi_label_classification",
    metrics=("multi_label",),
)


def test_inputs_are_those_of_the_original(tiny_checkpoint):
    """google-research/bert run_classifier.py `convert_single_example`."""
    kind = make_kind(
        tiny_checkpoint, get_task("mrpc"), {"not_equivalent": 0, "equivalent": 1}, max_seq_length=12
    )
    tokenizer = kind.tokenizer
    pair, single = kind.encode(
        split(
            TextExample(idx=0, text="abcdefgh", text_pair="xyz12", label=1),
            TextExample(idx=1, text="a" * 30, label=0),
        )
    ).features
    pieces = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    assert pieces == [
        "[CLS]",
        "a",
        "##b",
        "##c",
        "##d",
        "##e",
        "[SEP]",
        "x",
        "##y",
        "##z",
        "##1",
        "[SEP]",
    ]
    assert pair["token_type_ids"] == [0] * 7 + [1] * 5
    assert len(single["input_ids"]) == 12
    assert single["input_ids"][-1] == tokenizer.sep_token_id
    assert single["token_type_ids"] == [0] * 12


def test_an_empty_second_text_is_none(tiny_checkpoint):
    """google-research/bert run_classifier.py `convert_single_example`: `if tokens_b`."""
    kind = make_kind(
        tiny_checkpoint, get_task("mrpc"), {"not_equivalent": 0, "equivalent": 1}, max_seq_length=12
    )
    pairs = [
        TextExample(idx=n, text="a" * 30, text_pair=pair, label=1)
        for n, pair in enumerate(("", " ", None))
    ]
    empty, blank, single = kind.encode(split(*pairs)).features
    assert len(single["input_ids"]) == 12
    assert empty == blank == single


def test_label_names_decide_and_not_their_order(tiny_checkpoint):
    kind = make_kind(tiny_checkpoint, get_task("mrpc"), {"equivalent": 0, "not_equivalent": 1})
    encoded = kind.encode(split(TextExample(idx=0, text="a", text_pair="b", label=1)))
    assert encoded.features[0]["labels"] == 0
    (prediction,) = kind.decode(encoded, [np.array([2.0, 0.0], dtype=np.float32)])
    assert prediction.value == "equivalent"
    assert prediction.probabilities["equivalent"] == pytest.approx(np.exp(2) / (np.exp(2) + 1))
    assert kind.score(encoded.split.examples, [prediction])["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("task", "labels", "problem_type"),
    [
        (get_task("mrpc"), [1, 0, 1], "single_label_classification"),
        (get_task("stsb"), [0.5, 4.25, 3.0], "regression"),
        (MULTI, [(0,), (), (1, 2)], "multi_label_classification"),
    ],
)
def test_the_loss_is_that_of_the_stock_head(tiny_checkpoint, task, labels, problem_type):
    label2id = {name: number for number, name in enumerate(task.labels)}
    kind = make_kind(tiny_checkpoint, task, label2id)
    model = transformers.BertForSequenceClassification.from_pretrained(
        tiny_checkpoint, num_labels=max(1, len(task.labels)), problem_type=problem_type
    ).eval()
    examples = [
        TextExample(idx=n, text="ab" * (n + 1), label=label) for n, label in enumerate(labels)
    ]
    batch = kind.collate(kind.encode(split(*examples)).features)
    stock = model(**batch)
    ours = kind.loss_sum(stock, batch) / kind.count_items(batch)
    assert ours.item() == pytest.approx(stock.loss.item(), rel=1e-6)


def test_several_labels_are_those_of_probability_one_half_and_more(tiny_checkpoint):
    kind = make_kind(tiny_checkpoint, MULTI, {"red": 0, "green": 1, "blue": 2})
    encoded = kind.encode(split(TextExample(idx=7, text="a", label=(0, 2))))
    (prediction,) = kind.decode(encoded, [np.array([1.0, -1.0, 0.0], dtype=np.float32)])
    assert prediction.value == ["red", "blue"]
    figures = kind.score(encoded.split.examples, [prediction])
    assert set(figures.values()) <= {0.0, 1.0, 2 / 3}
    assert torch.equal(kind.collate(encoded.features)["labels"], torch.tensor([[1.0, 0.0, 1.0]]))


def test_a_line_of_the_file_is_a_row(tiny_checkpoint, tmp_path):
    kind = make_kind(tiny_checkpoint, get_task("stsb"), {})
    encoded = kind.encode(
        split(*(TextExample(idx=n * 3, text="a", text_pair="b") for n in range(3)))
    )
    predictions = kind.decode(
        encoded, [np.array([value], dtype=np.float32) for value in (1.5, 2.25, -0.125)]
    )
    (file,) = kind.write(tmp_path, "test", encoded.split.examples, predictions)
    assert file.name == "predictions_test.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"idx": 0, "prediction": 1.5},
        {"idx": 3, "prediction": 2.25},
        {"idx": 6, "prediction": -0.125},
    ]


def test_what_is_read_of_a_long_text(tiny_checkpoint):
    """Sun et al. 2019, section 5.3.1: head, tail, a quarter of head and three of tail; Pappagari et
    al. 2019: windows.
    """
    text = TextExample(idx=0, text="".join("abcdefghij"[n % 10] for n in range(25)), label=1)
    short = TextExample(idx=1, text="ab", label=0)
    single = replace(get_task("mrpc"), text_columns=("sentence1",))
    found = {}
    for way in (None, "head", "tail", "head_tail", "windows"):
        settings = {"max_seq_length": 10, "long_documents": way, "doc_stride": 6}
        kind = make_kind(
            tiny_checkpoint, single, {"not_equivalent": 0, "equivalent": 1}, **settings
        )
        encoded = kind.encode(split(text, short))
        assert encoded.details == [len(encoded.features) - 1, 1]
        assert [feature["labels"] for feature in encoded.features] == [1] * (
            len(encoded.features) - 1
        ) + [0]
        pieces = [
            kind.tokenizer.convert_ids_to_tokens(feature["input_ids"][1:-1])
            for feature in encoded.features[:-1]
        ]
        found[way] = ["".join(piece.removeprefix("##") for piece in window) for window in pieces]
    assert found[None] == found["head"] == ["abcdefgh"]
    assert found["tail"] == ["hijabcde"]
    assert found["head_tail"] == ["abjabcde"]
    assert found["windows"] == ["abcdefgh", "ghijabcd", "cdefghij", "ijabcde"]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [("mean", [1.0, 1.0]), ("max", [3.0, 2.0]), ("first", [3.0, 0.0]), ("vote", None)],
)
def test_windows_of_a_document_become_one_answer(pool, expected):
    windows = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    pooled = pool_logits(windows, pool)
    if expected is None:
        assert np.exp(pooled) / np.exp(pooled).sum() == pytest.approx([1 / 3, 2 / 3], abs=1e-6)
    else:
        assert pooled.tolist() == expected
        if pool != "first":
            assert pool_logits(windows[::-1], pool).tolist() == expected
    assert pool_logits(windows[:1], pool).tolist() == windows[0].tolist()


def test_windows_vote_where_one_class_is_right(tiny_checkpoint):
    with pytest.raises(
        InputError, match="pool is vote; task stsb has no classes of which one is right"
    ):
        make_kind(tiny_checkpoint, get_task("stsb"), {}, long_documents="windows", pool="vote")


def test_pairs_have_no_windows_and_a_pool_needs_them(tiny_checkpoint):
    kind = make_kind(
        tiny_checkpoint,
        get_task("mrpc"),
        {"not_equivalent": 0, "equivalent": 1},
        max_seq_length=10,
        long_documents="tail",
    )
    with pytest.raises(InputError, match="long_documents is tail; task mrpc has pairs"):
        kind.encode(split(TextExample(idx=0, text="a" * 30, text_pair="b", label=1)))
    with pytest.raises(InputError, match="pool is max; it joins windows"):
        TaskArguments(task="mrpc", pool="max")
