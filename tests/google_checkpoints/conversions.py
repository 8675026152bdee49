"""What the tests of conversion share: converting, reading everything, and comparing outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from fixture_parts import CONFIG, INPUTS
from safetensors.numpy import load_file

from bert_recipes.google_checkpoints import Converted, convert_to_hub, find_files, list_weights
from bert_recipes.tensorflow_files import BundleReader


def to_hub(folder: Path, output: Path, **settings: Any) -> Converted:
    return convert_to_hub(find_files(str(folder), None, None), output, **settings)


def read_all(prefix: Path) -> dict[str, np.ndarray]:
    reader = BundleReader(prefix)
    return {name: reader.read(name) for name in reader.variables}


def check_weights(folder: Path, variables: dict[str, np.ndarray]) -> None:
    """Hold the tensors of a converted folder to the original's variables, bit for bit."""
    tensors = load_file(folder / "model.safetensors")
    is_bare = "embeddings.word_embeddings.weight" in tensors
    weights = {weight.variable: weight for weight in list_weights(CONFIG, num_labels=3)}
    assert len(tensors) == len(variables)
    for name, values in variables.items():
        tensor = tensors[weights[name].tensor.removeprefix("bert." * is_bare)]
        np.testing.assert_array_equal(tensor, values.T if name.endswith("kernel") else values)


def check_outputs(model: Any, wanted: dict[str, np.ndarray]) -> None:
    """Hold a stock model's outputs for the real tokens of `INPUTS` to the original's, flat over
    batch and positions or not.

    Those of the pre-training heads are logarithms of probabilities, as run_pretraining.py has them.
    """
    with torch.no_grad():
        got = model.eval()(
            **{name: torch.from_numpy(array) for name, array in INPUTS.items()},
            output_hidden_states=True,
        )
    found = {"hidden": got.hidden_states[-1], "pooled": getattr(got, "pooler_output", None)}
    if "squad" in wanted:
        found["squad"] = torch.stack([got.start_logits, got.end_logits], -1)
    elif "masked_lm" in wanted:
        found["masked_lm"] = got.prediction_logits if "next_sentence" in wanted else got.logits
        found["next_sentence"] = getattr(got, "seq_relationship_logits", None)
    else:
        found |= {head: got.logits for head in ("next_sentence", "classifier") if head in wanted}
    real = INPUTS["attention_mask"].astype(bool)
    for name, tensor in found.items():
        if tensor is None:
            continue
        mine = tensor.log_softmax(-1) if name in ("masked_lm", "next_sentence") else tensor
        rows = real if mine.ndim == 3 else slice(None)
        np.testing.assert_allclose(
            mine.numpy()[rows], wanted[name].reshape(mine.shape)[rows], rtol=0, atol=2e-5
        )
