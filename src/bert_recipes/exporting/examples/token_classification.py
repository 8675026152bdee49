"""Tag words with the exported model.

    python example.py < sentences.txt

A line is a sentence, words apart by spaces. Needs onnxruntime and tokenizers (and numpy, which
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
labels = config.get(
    "id2label", {"0": "LABEL_0", "1": "LABEL_1"}
)  # the library leaves out what is its default
session = onnxruntime.InferenceSession(
    str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # "[SEP]" written in a text is text
length = json.loads((folder / "export.json").read_text(encoding="utf-8"))["max_seq_length"]
tokenizer.enable_truncation(length)
tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")

sentences = [line.split() for line in sys.stdin]
encodings = tokenizer.encode_batch(sentences, is_pretokenized=True)
inputs = {
    "input_ids": np.array([encoding.ids for encoding in encodings]),
    "attention_mask": np.array([encoding.attention_mask for encoding in encodings]),
    "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
}
(logits,) = session.run(
    ["logits"], {entry.name: inputs[entry.name] for entry in session.get_inputs()}
)

for words, encoding, row in zip(sentences, encodings, logits, strict=True):
    # A word's tag is read off its first piece; words that did not fit have none.
    tags = ["?"] * len(words)
    for position, word in reversed(list(enumerate(encoding.word_ids))):
        if word is not None:
            tags[word] = labels[str(row[position].argmax())]
    print(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)))
