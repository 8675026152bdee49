"""Our model and collator under the Trainer as it comes: the masked-LM loss is right there too."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization import load_tokenizer


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
        # The stock Trainer does not count pairs: each micro-batch's next-sentence mean is weighted by its masked tokens.
        assert parts[0] == pytest.approx(whole[0], rel=2e-3)
        assert parts[1] == pytest.approx(whole[1], rel=2e-2)
