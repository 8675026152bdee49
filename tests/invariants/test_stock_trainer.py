"""Our model and collator under the Trainer as it comes: losses and predictions are right there
too.
"""

import numpy as np
import pytest
import torch
import transformers
from transformers import Trainer, TrainingArguments

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture
def data(small_store):
    """A collator, and a function that makes a data set of a split."""
    store = open_store(small_store)
    ids = {"cls_id": 2, "sep_id": 3, "store_fingerprint": store.fingerprint}

    def dataset_of(split, **settings):
        return PreTrainingDataset(getattr(store, split), max_seq_length=48, **ids, **settings)

    return DataCollatorForPreTraining(load_tokenizer(store.tokenizer_path)), dataset_of


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """Return a function that makes stock's. Args: settings."""
    # Runs in this process before may have left their precision there.
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    plain = {"use_cpu": True, "remove_unused_columns": False, "disable_tqdm": True}
    return lambda **settings: TrainingArguments(output_dir=str(tmp_path), **plain, **settings)


def make_model(collator, **settings):
    torch.manual_seed(0)
    vocab_size = len(collator.tokenizer)
    return BertForPreTraining(pretraining_config("tiny", vocab_size=vocab_size, **settings))


def test_model_and_collator_plug_into_the_stock_trainer(data, arguments):
    collator, dataset_of = data

    def first_line(batch, accumulation):
        args = arguments(
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            train_sampling_strategy="sequential",
            max_grad_norm=0.0,
        )
        model = make_model(collator, dropout=0.0)
        trainer = Trainer(model, args, collator, train_dataset=dataset_of("train"))
        trainer.train()
        return trainer.state.log_history[0]

    result = first_line(16, 1)
    split_result = first_line(2, 8)
    # The stock Trainer does not count pairs: each micro-batch's next-sentence mean is weighted by
    # its masked tokens.
    assert split_result["loss"] == pytest.approx(result["loss"], rel=2e-3)
    assert split_result["grad_norm"] == pytest.approx(result["grad_norm"], rel=2e-2)


def accuracies(prediction):
    """What a user's `compute_metrics` sees: logits (N, S, V) and (N, 2), labels (N, S) and (N,)."""
    (words, pairs), (labels, is_random) = prediction.predictions, prediction.label_ids
    is_predicted = labels != -100
    return {
        "mlm": (words.argmax(-1) == labels)[is_predicted].mean().item(),
        "nsp": (pairs.argmax(-1) == is_random).mean().item(),
    }


def test_predictions_and_metrics_of_the_stock_trainer_are_those_of_the_stock_model(
    data, arguments, tmp_path
):
    """transformers, `Trainer.prediction_step`: what is not in `keys_to_ignore_at_inference` is a
    prediction.
    """
    collator, dataset_of = data
    dataset = dataset_of("validation", short_seq_prob=1.0)
    # Eleven pairs in batches of 4, 4 and 3, each as long as its longest pair.
    features = [dataset[(0, index)] for index in range(11)]
    features.sort(key=lambda pair: len(pair["input_ids"]))
    widths = {collator(features[start : start + 4])["input_ids"].shape[1] for start in (0, 4, 8)}
    assert len(widths) > 1
    ours = make_model(collator)
    ours.save_pretrained(tmp_path / "model")
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path / "model")
    assert "mlm_loss" not in (tmp_path / "model" / "config.json").read_text()
    args = arguments(per_device_eval_batch_size=4, report_to="none")
    trainer = Trainer(ours, args, collator, compute_metrics=accuracies)
    prediction = trainer.predict(features)
    expected = Trainer(stock, args, collator, compute_metrics=accuracies).predict(features)
    logits, pair_logits = prediction.predictions
    assert logits.shape == (11, max(widths), len(collator.tokenizer))
    assert pair_logits.shape == (11, 2)
    for ours, theirs in zip(prediction.predictions, expected.predictions, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    metrics = trainer.evaluate(features)
    for name in ("loss", "mlm", "nsp"):
        test_metric = prediction.metrics[f"test_{name}"]
        assert test_metric == pytest.approx(expected.metrics[f"test_{name}"], rel=1e-4)
        assert metrics[f"eval_{name}"] == pytest.approx(test_metric, rel=1e-5)
