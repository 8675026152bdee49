"""A finished run opens in stock transformers, and its pipelines give the answers of
recipes/predict.py.
"""

import json
import logging

import numpy as np
import pytest
import torch
import transformers


CLASSES = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
}
# Probabilities in the files have six digits.
TOLERANCE = 1e-5


def read(run):
    rows = [
        json.loads(line)
        for line in (run.parent / "data" / "validation.jsonl").read_text().splitlines()
    ]
    lines = [
        json.loads(line) for line in (run / "predictions_validation.jsonl").read_text().splitlines()
    ]
    return list(zip(rows, lines, strict=True))


@pytest.mark.parametrize("kind", CLASSES)
def test_a_run_opens_in_stock_transformers_with_nothing_missing(tiny_runs, kind):
    model, info = getattr(transformers, CLASSES[kind]).from_pretrained(
        tiny_runs(kind), output_loading_info=True
    )
    assert type(model).__module__.startswith("transformers.models.bert.")
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_runs(kind))
    assert len(tokenizer) == model.config.vocab_size


def test_text_classification(tiny_runs, caplog):
    run = tiny_runs("sequence_classification")
    with caplog.at_level(logging.WARNING):
        classify = transformers.pipeline(
            "text-classification", model=str(run), top_k=None, device="cpu"
        )
    assert classify.model.config.label2id == {"yes": 0, "no": 1, "perhaps": 2}
    compared = 0
    for row, line in read(run):
        pieces = classify.tokenizer(row["first"], row["second"])["input_ids"]
        if len(pieces) > 40:  # max_seq_length of the run: a pipeline cuts by another rule
            continue
        found = classify({"text": row["first"], "text_pair": row["second"]})
        assert found[0]["label"] == line["prediction"]
        shares = {item["label"]: item["score"] for item in found}
        assert shares == pytest.approx(line["probabilities"], abs=TOLERANCE)
        compared += 1
    assert compared >= 8


def test_token_classification(tiny_runs):
    """Every row of these data is a document of its own, as for a pipeline; predictions are read off
    first pieces.
    """
    run = tiny_runs("token_classification")
    tag = transformers.pipeline(
        "token-classification", model=str(run), ignore_labels=[], device="cpu"
    )
    compared = 0
    for row, line in read(run):
        text = " ".join(row["tokens"])
        if len(tag.tokenizer(text)["input_ids"]) > 40:
            continue
        starts = np.cumsum([0, *(len(word) + 1 for word in row["tokens"][:-1])]).tolist()
        at = {item["start"]: item for item in tag(text)}
        assert [at[start]["entity"] for start in starts] == line["prediction"]
        assert [float(at[start]["score"]) for start in starts] == pytest.approx(
            line["probabilities"], abs=TOLERANCE
        )
        compared += 1
    assert compared >= 8


def test_multiple_choice(tiny_runs):
    """There is no pipeline; the stock model on the stock tokenizer's pairs."""
    run = tiny_runs("multiple_choice")
    model = transformers.AutoModelForMultipleChoice.from_pretrained(run).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    compared = 0
    for row, line in read(run):
        batch = tokenizer(
            [row["start"]] * 3, [row[name] for name in "abc"], padding=True, return_tensors="pt"
        )
        if batch["input_ids"].shape[1] > 40:
            continue
        with torch.no_grad():
            logits = model(**{key: value[None] for key, value in batch.items()}).logits[0]
        assert logits.softmax(-1).tolist() == pytest.approx(line["probabilities"], abs=TOLERANCE)
        assert int(logits.argmax()) == line["prediction"]
        compared += 1
    assert compared >= 8


def test_question_answering(tiny_runs):
    """The stock model on one window gives the answer; newer versions of transformers have no such
    pipeline.
    """
    run = tiny_runs("question_answering")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(run).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    compared = 0
    for row, line in read(run):
        encoded = tokenizer(
            row["question"], row["context"], return_tensors="pt", return_offsets_mapping=True
        )
        offsets = encoded.pop("offset_mapping")[0].tolist()
        if len(offsets) > 40 or len(tokenizer.tokenize(row["question"])) > 12:
            continue
        with torch.no_grad():
            output = model(**encoded)
        in_context = np.array([part == 1 for part in encoded.sequence_ids(0)])
        allowed = (
            np.triu(np.ones((len(offsets), len(offsets)), dtype=bool))
            & in_context
            & in_context[:, None]
        )
        allowed &= ~np.triu(allowed, k=30)  # max_answer_length
        scores = np.where(
            allowed, output.start_logits[0].numpy()[:, None] + output.end_logits[0].numpy(), -np.inf
        )
        first, last = np.unravel_index(scores.argmax(), scores.shape)
        # An answer is made of whole words where its pieces are; the stock offsets cut within them.
        assert row["context"][offsets[first][0] : offsets[last][1]] == line["prediction"]
        compared += 1
    assert compared >= 5
