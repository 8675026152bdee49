"""The original's model for tests: its variables by the names that its code gives them.

Written from google-research/bert modeling.py and run_pretraining.py, and on purpose without the
package's own table of names.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from bundle_writer import write_bundle
from fixture_parts import CONFIG, PIECES


PRETRAINING = ("masked_lm", "next_sentence")


def shapes(
    config: Mapping, heads: tuple[str, ...] = PRETRAINING, num_labels: int = 3
) -> dict[str, tuple[int, ...]]:
    """Name of every variable -> shape, as the original's code makes them."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    found = {
        "bert/embeddings/word_embeddings": (config["vocab_size"], hidden),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], hidden),
        "bert/embeddings/position_embeddings": (config["max_position_embeddings"], hidden),
    }

    def norm(scope: str) -> None:
        found[f"{scope}/LayerNorm/beta"] = found[f"{scope}/LayerNorm/gamma"] = (hidden,)

    def dense(scope: str, inputs: int, outputs: int) -> None:
        found[f"{scope}/kernel"], found[f"{scope}/bias"] = (inputs, outputs), (outputs,)

    norm("bert/embeddings")
    for number in range(config["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}"
        for name in ("query", "key", "value"):
            dense(f"{layer}/attention/self/{name}", hidden, hidden)
        dense(f"{layer}/attention/output/dense", hidden, hidden)
        norm(f"{layer}/attention/output")
        dense(f"{layer}/intermediate/dense", hidden, inner)
        dense(f"{layer}/output/dense", inner, hidden)
        norm(f"{layer}/output")
    dense("bert/pooler/dense", hidden, hidden)
    if "masked_lm" in heads:
        dense("cls/predictions/transform/dense", hidden, hidden)
        norm("cls/predictions/transform")
        found["cls/predictions/output_bias"] = (config["vocab_size"],)
    if "next_sentence" in heads:
        found["cls/seq_relationship/output_weights"] = (2, hidden)
        found["cls/seq_relationship/output_bias"] = (2,)
    if "classifier" in heads:
        found["output_weights"], found["output_bias"] = (num_labels, hidden), (num_labels,)
    if "squad" in heads:
        found["cls/squad/output_weights"], found["cls/squad/output_bias"] = (2, hidden), (2,)
    return found


def draw_variables(
    config: Mapping = CONFIG,
    heads: tuple[str, ...] = PRETRAINING,
    *,
    with_adam: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Random values for all of them, and for what the optimizer adds."""
    rng = np.random.default_rng(seed)
    values = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes(config, heads).items()
    }
    if with_adam:
        for name in list(values):
            values[f"{name}/adam_m"] = rng.normal(size=values[name].shape).astype(np.float32)
            values[f"{name}/adam_v"] = values[f"{name}/adam_m"] ** 2
        values["global_step"] = np.asarray(1234, dtype=np.int64)
    return values


def write_original(
    folder: Path,
    variables: Mapping[str, np.ndarray],
    config: Mapping = CONFIG,
    *,
    pieces: list[str] = PIECES,
    name: str = "bert_model.ckpt",
) -> Path:
    """Write a folder as Google's downloads are; returns the checkpoint's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(folder / name, variables)
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder / name
