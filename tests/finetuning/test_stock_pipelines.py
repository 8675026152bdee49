"""A finished run opens in stock transformers, which gives the answers of recipes/predict.py."""

import json

import numpy as np
import pytest
import torch
import transformers

from bert_recipes.finetuning.checkpoints import HEADS


# Of the runs; a pipeline cuts longer texts by another rule.
MAX_SEQ_LENGTH = 40


@pytest.mark.parametrize("kind", HEADS)
def test_a_run_opens_in_stock_transformers_with_nothing_missing(tiny_runs, kind):
    stock_class = getattr(transformers, f"AutoModel{HEADS[kind]}")
    model, info = stock_class.from_pretrained(tiny_runs(kind), output_loading_info=True)
    assert type(model).__module__.startswith("transformers.models.bert.")
    assert not any(info.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_runs(kind))
    assert len(tokenizer) == model.config.vocab_size


def read_short(run, tokenizer, columns):
    """The rows that fit, and our predictions."""
    rows = (run.parent / "data" / "validation.jsonl").read_text().splitlines()
    lines = (run / "predictions_validation.jsonl").read_text().splitlines()
    pairs = []
    for row, line in zip(map(json.loads, rows), map(json.loads, lines), strict=True):
        texts = [" ".join(row[name]) if name == "tokens" else row[name] for name in columns]
        if len(tokenizer(*texts)["input_ids"]) <= MAX_SEQ_LENGTH:
            pairs.append((row, line))
    assert len(pairs) >= 8
    return pairs


def test_text_classification(tiny_runs):
    run = tiny_runs("sequence_classification")
    classify = transformers.pipeline("text-classification", model=str(run), top_k=None)
    assert classify.model.config.label2id == {"yes": 0, "no": 1, "perhaps": 2}
    for row, line in read_short(run, classify.tokenizer, ("first", "second")):
        answers = classify({"text": row["first"], "text_pair": row["second"]})
        assert answers[0]["label"] == line["prediction"]
        shares = {answer["label"]: answer["score"] for answer in answers}
        assert shares == pytest.approx(line["probabilities"], abs=1e-5)


def test_token_classification(tiny_runs):
    """Every row of these data is a document of its own; predictions are read off first pieces."""
    run = tiny_runs("token_classification")
    tag = transformers.pipeline("token-classification", model=str(run), ignore_labels=[])
    for row, line in read_short(run, tag.tokenizer, ("tokens",)):
        lengths = [len(word) + 1 for word in row["tokens"]]
        starts = np.cumsum([0, *lengths[:-1]])
        answers = {answer["start"]: answer for answer in tag(" ".join(row["tokens"]))}
        assert [answers[start]["entity"] for start in starts] == line["prediction"]
        shares = [float(answers[start]["score"]) for start in starts]
        assert shares == pytest.approx(line["probabilities"], abs=1e-5)


def test_question_answering(tiny_runs):
    """The best span of at most 30 pieces that stands in the paragraph."""
    run = tiny_runs("question_answering")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(run).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    for row, line in read_short(run, tokenizer, ("question", "context")):
        inputs = tokenizer(row["question"], row["context"], return_tensors="pt")
        with torch.no_grad():
            output = model(**inputs)
        scores = output.start_logits[0][:, None] + output.end_logits[0]
        in_context = torch.tensor([number == 1 for number in inputs.sequence_ids(0)])
        is_span = torch.ones_like(scores, dtype=torch.bool).triu().tril(29)
        is_span &= in_context[:, None] & in_context
        best = int(scores.masked_fill(~is_span, -torch.inf).argmax())
        first, last = divmod(best, len(scores))
        start = inputs.token_to_chars(first).start
        end = inputs.token_to_chars(last).end
        assert row["context"][start:end] == line["prediction"]


def test_multiple_choice(tiny_runs):
    run = tiny_runs("multiple_choice")
    model = transformers.AutoModelForMultipleChoice.from_pretrained(run).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    for row, line in read_short(run, tokenizer, ("start", "a")):
        pairs = [[row["start"]] * 3, [row[name] for name in "abc"]]
        inputs = tokenizer(*pairs, return_tensors="pt", padding=True)
        if inputs["input_ids"].shape[1] > MAX_SEQ_LENGTH:
            continue
        with torch.no_grad():
            logits = model(**{name: value[None] for name, value in inputs.items()}).logits
        assert int(logits.argmax()) == line["prediction"]
        shares = logits[0].softmax(-1).tolist()
        assert shares == pytest.approx(line["probabilities"], abs=1e-5)
