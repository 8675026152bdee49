"""Answer questions with the exported model.

    python example.py < questions.txt

A line is a question, a tab, and the paragraph with the answer; of a long paragraph only the
beginning is read. Needs onnxruntime and tokenizers (and numpy, which comes with the first).
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


LONGEST_ANSWER = 30  # pieces

folder = Path(__file__).parent
session = onnxruntime.InferenceSession(
    str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # "[SEP]" written in a text is text
length = json.loads((folder / "export.json").read_text(encoding="utf-8"))["max_seq_length"]
tokenizer.enable_truncation(length, strategy="only_second")
tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")

pairs = [tuple(line.rstrip("\n").split("\t", 1)) for line in sys.stdin]
encodings = tokenizer.encode_batch(pairs)
inputs = {
    "input_ids": np.array([encoding.ids for encoding in encodings]),
    "attention_mask": np.array([encoding.attention_mask for encoding in encodings]),
    "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
}
feeds = {entry.name: inputs[entry.name] for entry in session.get_inputs()}
starts, ends = session.run(["start_logits", "end_logits"], feeds)

for (question, paragraph), encoding, start, end in zip(pairs, encodings, starts, ends, strict=True):
    # Sums of all spans: not backwards, not too long, inside of the paragraph.
    inside = np.array([number == 1 for number in encoding.sequence_ids])
    scores = np.where(inside[:, None] & inside, start[:, None] + end, -np.inf)
    distance = np.arange(len(start)) - np.arange(len(start))[:, None]
    scores[(distance < 0) | (distance >= LONGEST_ANSWER)] = -np.inf
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    print(f"{paragraph[encoding.offsets[first][0] : encoding.offsets[last][1]]}\t{question}")
