"""Choose an ending with the exported model.

    python example.py < choices.txt

A line is a text and its possible endings, all with tabs between them; every line has as many. Needs
onnxruntime and tokenizers (and numpy, which comes with the first).
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


folder = Path(__file__).parent
session = onnxruntime.InferenceSession(
    str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # "[SEP]" written in a text is text
length = json.loads((folder / "export.json").read_text(encoding="utf-8"))["max_seq_length"]
tokenizer.enable_truncation(length)
tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")

rows = [line.rstrip("\n").split("\t") for line in sys.stdin]
encodings = tokenizer.encode_batch(
    [(text, ending) for text, *endings in rows for ending in endings]
)
shape = (len(rows), len(rows[0]) - 1, -1)  # examples, choices, positions
inputs = {
    "input_ids": np.array([encoding.ids for encoding in encodings]).reshape(shape),
    "attention_mask": np.array([encoding.attention_mask for encoding in encodings]).reshape(shape),
    "token_type_ids": np.array([encoding.type_ids for encoding in encodings]).reshape(shape),
}
(logits,) = session.run(
    ["logits"], {entry.name: inputs[entry.name] for entry in session.get_inputs()}
)

for (text, *endings), row in zip(rows, logits.astype(np.float64), strict=True):
    shares = np.exp(row - row.max())
    shares /= shares.sum()
    print(f"{shares.argmax()}\t{shares.max():.4f}\t{text} {endings[shares.argmax()]}")
