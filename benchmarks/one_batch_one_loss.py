"""Train one step on a batch, whole and in four parts: the loss has to be the same.

    python benchmarks/one_batch_one_loss.py stock    # ends with an AssertionError
    python benchmarks/one_batch_one_loss.py here

README.md, "Why not stock transformers alone".
"""

import sys
import tempfile

import torch
import transformers
from transformers import TrainingArguments, default_data_collator

import bert_recipes
from bert_recipes.models.sizes import pretraining_config


library = {"stock": transformers, "here": bert_recipes}[sys.argv[1]]
trainer_class = bert_recipes.BertTrainer if library is bert_recipes else transformers.Trainer

ids = torch.arange(10, 26)
rows = []
for number in range(8):  # the first row has one predicted token, the last has eight
    labels = torch.where(torch.arange(16) <= number, ids, -100)
    rows.append({"input_ids": ids, "labels": labels, "next_sentence_label": number % 2})

losses = []
for num_parts in (1, 4):
    torch.manual_seed(0)
    model = library.BertForPreTraining(pretraining_config("tiny", vocab_size=100, dropout=0.0))
    args = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=1,
        logging_steps=1,
        per_device_train_batch_size=8 // num_parts,
        gradient_accumulation_steps=num_parts,
        save_strategy="no",
        report_to="none",
    )
    trainer = trainer_class(model, args, data_collator=default_data_collator, train_dataset=rows)
    trainer.train()
    losses.append(trainer.state.log_history[0]["loss"])

version = transformers.__version__
print(f"transformers {version}, {sys.argv[1]}: {losses[0]:.4f} and {losses[1]:.4f}")
assert abs(losses[0] - losses[1]) < 1e-4
