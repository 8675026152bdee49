"""Run the exported model on lines of text.

    python example.py < texts.txt

A line is a text, or several with tabs between: a pair, a question and its paragraph, a text and
its possible endings. Each output is printed by its name, with its three largest logits: of classes,
of endings, of the pieces where an answer begins or ends; for each piece where the model says
something of each. Needs onnxruntime and tokenizers (and numpy, which comes with the first).
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


folder = Path(__file__).parent
config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
report = json.loads((folder / "export.json").read_text(encoding="utf-8"))
# The library leaves out what is its default.
labels = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
session = onnxruntime.InferenceSession(
    str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
)
inputs = [value.name for value in session.get_inputs()]
# Output -> what its last axis counts: a name, or the number of classes.
axes = {value.name: value.shape[-1] for value in session.get_outputs()}
has_choices = axes.get("logits") == "choices"

tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
# "[SEP]" written in a text is text; "[MASK]" is a mask where the model fills masks.
tokenizer.encode_special_tokens = "prediction_logits" not in axes
tokenizer.enable_truncation(report["max_seq_length"])
tokenizer.enable_padding(pad_id=config["pad_token_id"])


def name_of(output: str, index: int, pieces: list[str]) -> str:
    """Return what an index of an output's last axis stands for."""
    if axes[output] == "choices":
        return f"ending {index}"
    if axes[output] == "sequence":
        return f"{pieces[index]} at {index}"
    if output == "prediction_logits":
        return str(tokenizer.id_to_token(index))
    return str(labels[str(index)])


def largest(output: str, logits: np.ndarray, pieces: list[str]) -> str:
    """Return the three largest logits with the names of their indices."""
    order = np.argsort(-logits)[:3].tolist()
    return ", ".join(f"{name_of(output, index, pieces)} {logits[index]:.3f}" for index in order)


for number, line in enumerate(sys.stdin, start=1):
    text = line.rstrip("\n")
    columns = text.split("\t")
    if has_choices and len(columns) < 2:
        print(f"line {number} is skipped: it has no ending behind a tab", file=sys.stderr)
        continue
    if not has_choices and len(columns) > 2:
        print(f"line {number} is skipped: it has {len(columns)} texts, not 1 or 2", file=sys.stderr)
        continue
    if has_choices:
        encodings = tokenizer.encode_batch([(columns[0], ending) for ending in columns[1:]])
        shape: tuple[int, ...] = (1, len(encodings), -1)
    else:
        encodings = [tokenizer.encode(*columns)]
        shape = (1, -1)
    columns_of_inputs = {
        "input_ids": [encoding.ids for encoding in encodings],
        "attention_mask": [encoding.attention_mask for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
    }
    feeds = {name: np.reshape(columns_of_inputs[name], shape) for name in inputs}
    outputs = session.run(list(axes), feeds)

    pieces = encodings[0].tokens
    print(text)
    for name, values in zip(axes, outputs, strict=True):
        if values.ndim == 2:
            print(f"  {name}: {largest(name, values[0], pieces)}")
            continue
        for piece, logits in zip(pieces, values[0], strict=True):
            print(f"  {name}, {piece}: {largest(name, logits, pieces)}")
