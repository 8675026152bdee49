"""The data floor: text -> store -> pairs -> batches. It knows no model and no tokenizer."""
