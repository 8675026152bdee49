"""The small model of the checkpoints in tests/fixtures/google, and inputs. Needs numpy alone."""

import string

import numpy as np


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
PIECES += [f"##{letter}" for letter in string.ascii_lowercase] + ["."]
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": len(PIECES),
}
# Three rows of 16, 11 and 4 tokens; every piece but [PAD] in turn.
_MASK = (np.arange(16) < [[16], [11], [4]]).astype(np.int64)
INPUTS = {
    "input_ids": (1 + np.arange(48).reshape(3, 16)) * _MASK,
    "attention_mask": _MASK,
    "token_type_ids": (np.arange(16) >= [[8], [5], [16]]).astype(np.int64) * _MASK,
}
