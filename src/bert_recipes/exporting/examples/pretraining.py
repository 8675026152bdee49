"""Fill masks and judge pairs with the exported model.

    python example.py < texts.txt

A line is a text with [MASK] in it, or two texts with a tab between them. Needs onnxruntime and
tokenizers (and numpy, which comes with the first).
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
names = ["prediction_logits", "seq_relationship_logits"]
predictions, verdicts = session.run(
    names, {entry.name: inputs[entry.name] for entry in session.get_inputs()}
)


def softmax(row: np.ndarray) -> np.ndarray:
    """Logits to probabilities."""
    shares = np.exp(row.astype(np.float64) - row.max())
    return shares / shares.sum()


for line, encoding, logits, verdict in zip(lines, encodings, predictions, verdicts, strict=True):
    print(line)
    for position, piece in enumerate(encoding.tokens):
        if piece == "[MASK]":
            shares = softmax(logits[position, : tokenizer.get_vocab_size()])
            best = np.argsort(-shares)[:5]
            print(
                "  [MASK]:",
                ", ".join(
                    f"{tokenizer.id_to_token(number)} {shares[number]:.3f}" for number in best
                ),
            )
    if "\t" in line:
        print(f"  the second follows the first: {softmax(verdict)[0]:.3f}")
