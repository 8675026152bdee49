"""Classify texts with the exported model.

    python example.py < texts.txt

A line is a text, or two with a tab between them. Needs onnxruntime and tokenizers (and numpy, which
comes with the first).
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


folder = Path(__file__).parent
config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
# The library leaves out what is its default.
names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
labels = [names[number] for number in sorted(names, key=int)]
# What transformers does where the type is not stated: one row is a number.
problem = config.get("problem_type") or (
    "regression" if len(labels) == 1 else "single_label_classification"
)
session = onnxruntime.InferenceSession(
    str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # "[SEP]" written in a text is text
length = json.loads((folder / "export.json").read_text(encoding="utf-8"))["max_seq_length"]
tokenizer.enable_truncation(length)
tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")

lines = [line.rstrip("\n") for line in sys.stdin]
encodings = tokenizer.encode_batch(
    [tuple(line.split("\t")) if "\t" in line else line for line in lines]
)
inputs = {
    "input_ids": np.array([encoding.ids for encoding in encodings]),
    "attention_mask": np.array([encoding.attention_mask for encoding in encodings]),
    "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
}
(logits,) = session.run(
    ["logits"], {entry.name: inputs[entry.name] for entry in session.get_inputs()}
)

for line, row in zip(lines, logits.astype(np.float64), strict=True):
    if problem == "regression":
        print(f"{row[0]:.4f}\t{line}")
    elif problem == "multi_label_classification":
        shares = 1 / (1 + np.exp(-row))
        print(
            ", ".join(label for label, share in zip(labels, shares, strict=True) if share >= 0.5),
            line,
            sep="\t",
        )
    else:
        shares = np.exp(row - row.max())
        shares /= shares.sum()
        print(f"{labels[shares.argmax()]}\t{shares.max():.4f}\t{line}")
