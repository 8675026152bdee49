"""Classes and numbers of texts: inputs as the original's, the loss, decoding, long texts."""

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


MRPC = get_task("mrpc")
STSB = get_task("stsb")
MULTI = replace(
    MRPC,
    labels=("red", "green", "blue"),
    problem_type="multi_label_classification",
    metrics=("multi_label",),
)


@pytest.fixture(scope="module")
def make_kind(tiny_checkpoint):
    tokenizer = load_tokenizer(tiny_checkpoint)

    def make(task=MRPC, label2id=None, **settings):
        if label2id is None:
            label2id = {name: number for number, name in enumerate(task.labels)}
        arguments = TaskArguments(task="mrpc", **settings)
        return SequenceClassification(task, tokenizer, arguments, label2id)

    return make


def as_split(*examples):
    return Split(name="validation", examples=examples, source="made", num_rows=len(examples))


def test_inputs_are_those_of_the_original(make_kind):
    """google-research/bert run_classifier.py `convert_single_example`, also `if tokens_b`."""
    kind = make_kind(max_seq_length=12)
    examples = [TextExample(idx=0, text="abcdefgh", text_pair="xyz12", label=1)]
    for text_pair in (None, "", " "):
        examples.append(TextExample(idx=1, text="a" * 30, text_pair=text_pair, label=0))
    pair, single, *without_second = kind.encode(as_split(*examples)).features
    pieces = kind.tokenizer.convert_ids_to_tokens(pair["input_ids"])
    assert " ".join(pieces) == "[CLS] a ##b ##c ##d ##e [SEP] x ##y ##z ##1 [SEP]"
    assert pair["token_type_ids"] == [0] * 7 + [1] * 5
    assert len(single["input_ids"]) == 12
    assert single["input_ids"][-1] == kind.tokenizer.sep_token_id
    assert single["token_type_ids"] == [0] * 12
    assert without_second == [single, single]


def test_label_names_decide_and_not_their_order(make_kind):
    kind = make_kind(label2id={"equivalent": 0, "not_equivalent": 1})
    encoded = kind.encode(as_split(TextExample(idx=0, text="a", text_pair="b", label=1)))
    assert encoded.features[0]["labels"] == 0
    (prediction,) = kind.decode(encoded, [np.array([2.0, 0.0], dtype=np.float32)])
    assert prediction.value == "equivalent"
    assert prediction.probabilities["equivalent"] == pytest.approx(np.exp(2) / (np.exp(2) + 1))
    assert kind.score(encoded.split.examples, [prediction])["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("task", "labels"),
    [(MRPC, [1, 0, 1]), (STSB, [0.5, 4.25, 3.0]), (MULTI, [(0,), (), (1, 2)])],
)
def test_the_loss_is_that_of_the_stock_head(tiny_checkpoint, make_kind, task, labels):
    kind = make_kind(task)
    num_labels = max(1, len(task.labels))
    model = transformers.BertForSequenceClassification.from_pretrained(
        tiny_checkpoint, num_labels=num_labels, problem_type=task.problem_type
    ).eval()
    examples = [TextExample(idx=n, text="ab" * (n + 1), label=labels[n]) for n in range(3)]
    batch = kind.collate(kind.encode(as_split(*examples)).features)
    output = model(**batch)
    loss = kind.loss_sum(output, batch) / kind.count_items(batch)
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-6)


def test_several_labels_are_those_of_probability_one_half_and_more(make_kind):
    kind = make_kind(MULTI)
    encoded = kind.encode(as_split(TextExample(idx=7, text="a", label=(0, 2))))
    (prediction,) = kind.decode(encoded, [np.array([1.0, -1.0, 0.0], dtype=np.float32)])
    assert prediction.value == ["red", "blue"]
    figures = kind.score(encoded.split.examples, [prediction])
    # Of the labels, which nobody has in one of three.
    assert figures == {"f1_micro": 1.0, "f1_macro": pytest.approx(2 / 3), "subset_accuracy": 1.0}
    assert torch.equal(kind.collate(encoded.features)["labels"], torch.tensor([[1.0, 0.0, 1.0]]))


@pytest.mark.parametrize(
    ("long_documents", "inputs"),
    [
        (None, ["abcdefgh"]),
        ("head", ["abcdefgh"]),
        ("tail", ["hijabcde"]),
        ("head_tail", ["abjabcde"]),
        ("windows", ["abcdefgh", "ghijabcd", "cdefghij", "ijabcde"]),
    ],
)
def test_what_is_read_of_a_long_text(make_kind, long_documents, inputs):
    """Sun et al. 2019, section 5.3.1: a quarter of head; Pappagari et al. 2019: windows."""
    long = TextExample(idx=0, text="abcdefghijabcdefghijabcde", label=1)
    short = TextExample(idx=1, text="ab", label=0)
    single = replace(MRPC, text_columns=("sentence1",))
    kind = make_kind(single, max_seq_length=10, long_documents=long_documents, doc_stride=6)
    encoded = kind.encode(as_split(long, short))
    assert encoded.details == [len(inputs), 1]
    assert [feature["labels"] for feature in encoded.features] == [1] * len(inputs) + [0]
    for feature, text in zip(encoded.features[:-1], inputs, strict=True):
        pieces = kind.tokenizer.convert_ids_to_tokens(feature["input_ids"][1:-1])
        assert "".join(pieces).replace("##", "") == text


def test_the_head_of_a_long_text_is_a_quarter_of_all_positions(make_kind):
    """Sun et al. 2019, section 5.3.1: the first 128 and the last 382 tokens for 512 positions."""
    letters = ["a"] * 128 + ["b"] * 100 + ["c"] * 382
    single = replace(MRPC, text_columns=("sentence1",))
    kind = make_kind(single, max_seq_length=512, long_documents="head_tail")
    encoded = kind.encode(as_split(TextExample(idx=0, text=" ".join(letters), label=1)))
    pieces = kind.tokenizer.convert_ids_to_tokens(encoded.features[0]["input_ids"][1:-1])
    assert pieces == ["a"] * 128 + ["c"] * 382


def test_windows_of_a_document_become_one_answer():
    windows = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    assert pool_logits(windows, "mean").tolist() == [1.0, 1.0]
    assert pool_logits(windows, "max").tolist() == [3.0, 2.0]
    assert pool_logits(windows, "first").tolist() == [3.0, 0.0]
    shares = np.exp(pool_logits(windows, "vote"))
    assert shares / shares.sum() == pytest.approx([1 / 3, 2 / 3], abs=1e-6)
    assert pool_logits(windows[:1], "vote").tolist() == [3.0, 0.0]
    assert pool_logits(windows[:2], "vote").argmax() == 0  # equal votes: the mean decides


def test_long_texts_that_cannot_be_read_so_are_refused(make_kind):
    with pytest.raises(InputError, match="pool is vote; task stsb has no classes"):
        make_kind(STSB, long_documents="windows", pool="vote")
    with pytest.raises(InputError, match="pool is max; it joins windows"):
        TaskArguments(task="mrpc", pool="max")
    kind = make_kind(max_seq_length=10, long_documents="tail")
    kind.encode(as_split(TextExample(idx=0, text="a", text_pair="b", label=1)))
    with pytest.raises(InputError, match="long_documents is tail; task mrpc has pairs"):
        kind.encode(as_split(TextExample(idx=0, text="a" * 30, text_pair="b", label=1)))
