"""Our model and collator under the Trainer as it comes: losses and predictions are right there
too.
"""

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


def first_loss(store_path, output_dir, batch, accumulation):
    store = open_store(store_path)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset(
        store.train, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint, max_seq_length=48
    )
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer), dropout=0.0))
    args = TrainingArguments(
        output_dir=str(output_dir),
        use_cpu=True,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        max_steps=2,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        max_grad_norm=0.0,
    )
    trainer = Trainer(model, args, DataCollatorForPreTraining(tokenizer), train_dataset=dataset)
    trainer.train()
    first = trainer.state.log_history[0]
    return first["loss"], first["grad_norm"]


def test_model_and_collator_plug_into_the_stock_trainer(small_store, tmp_path):
    whole = first_loss(small_store, tmp_path, 16, 1)
    for batch, accumulation in ((8, 2), (2, 8)):
        parts = first_loss(small_store, tmp_path, batch, accumulation)
        # The stock Trainer does not count pairs: each micro-batch's next-sentence mean is weighted
        # by its masked tokens.
        assert parts[0] == pytest.approx(whole[0], rel=2e-3)
        assert parts[1] == pytest.approx(whole[1], rel=2e-2)


def accuracies(prediction):
    """What a user's `compute_metrics` sees: logits (N, S, V) and (N, 2), labels (N, S) and (N,)."""
    (words, pairs), (labels, is_random) = prediction.predictions, prediction.label_ids
    chosen = labels != -100
    return {
        "mlm": (words.argmax(-1) == labels)[chosen].mean().item(),
        "nsp": (pairs.argmax(-1) == is_random).mean().item(),
    }


def test_predictions_and_metrics_of_the_stock_trainer_are_those_of_the_stock_model(
    small_store, tmp_path, monkeypatch
):
    """transformers, `Trainer.prediction_step`: what is not in `keys_to_ignore_at_inference` is a
    prediction.
    """
    # Runs in this process before may have left their precision there.
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset(
        store.validation,
        cls_id=2,
        sep_id=3,
        store_fingerprint=store.fingerprint,
        max_seq_length=48,
        short_seq_prob=1.0,
    )
    collator = DataCollatorForPreTraining(tokenizer)
    # Eleven pairs in batches of 4, 4 and 3, each as long as its longest pair.
    features = sorted(
        (dataset[(0, index)] for index in range(11)), key=lambda pair: len(pair["input_ids"])
    )
    widths = {collator(features[start : start + 4])["input_ids"].shape[1] for start in (0, 4, 8)}
    assert len(widths) > 1
    torch.manual_seed(0)
    ours = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer)))
    ours.save_pretrained(tmp_path / "model")
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path / "model")
    assert "mlm_loss" not in (tmp_path / "model" / "config.json").read_text()
    args = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        per_device_eval_batch_size=4,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
    )
    trainers = [
        Trainer(model, args, collator, compute_metrics=accuracies) for model in (ours, stock)
    ]
    found, expected = (trainer.predict(features) for trainer in trainers)
    assert [part.shape for part in found.predictions] == [
        (11, max(widths), len(tokenizer)),
        (11, 2),
    ]
    for own, other in zip(found.predictions, expected.predictions, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(own), torch.from_numpy(other), rtol=1e-4, atol=1e-5
        )
    for name in ("test_loss", "test_mlm", "test_nsp"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4)
    figures = trainers[0].evaluate(features)
    assert figures["eval_mlm"] == pytest.approx(found.metrics["test_mlm"])
    assert figures["eval_loss"] == pytest.approx(found.metrics["test_loss"], rel=1e-5)
