"""What the tests of conversion share: converting, and comparing weights and outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from fixture_parts import CONFIG, INPUTS
from safetensors.numpy import load_file

from bert_recipes.google_checkpoints import Converted, convert_to_hub, find_files, list_weights


def to_hub(folder: Path, output: Path, **settings: Any) -> Converted:
    return convert_to_hub(find_files(str(folder), None, None), output, **settings)


def check_weights(folder: Path, variables: dict[str, np.ndarray]) -> None:
    """Hold the tensors of a converted folder to the original's variables, bit for bit."""
    tensors = load_file(folder / "model.safetensors")
    prefix = "bert." if "embeddings.word_embeddings.weight" in tensors else ""
    weights = {weight.variable: weight for weight in list_weights(CONFIG, num_labels=3)}
    assert len(tensors) == len(variables)
    for name, values in variables.items():
        tensor = tensors[weights[name].tensor.removeprefix(prefix)]
        np.testing.assert_array_equal(tensor, values.T if name.endswith("kernel") else values)


def check_outputs(model: Any, original: dict[str, np.ndarray]) -> None:
    """Hold a stock model's outputs for the real tokens of `INPUTS` to the original's.

    Those may be flat over batch and positions. Those of the pre-training heads are logarithms of
    probabilities, as run_pretraining.py has them.
    """
    inputs = {name: torch.from_numpy(array) for name, array in INPUTS.items()}
    with torch.no_grad():
        computed = model.eval()(**inputs, output_hidden_states=True)
    tensors = {"hidden": computed.hidden_states[-1]}
    if "pooler_output" in computed:
        tensors["pooled"] = computed.pooler_output
    if "squad" in original:
        tensors["squad"] = torch.stack([computed.start_logits, computed.end_logits], -1)
    elif "masked_lm" in original and "next_sentence" in original:
        tensors["masked_lm"] = computed.prediction_logits.log_softmax(-1)
        tensors["next_sentence"] = computed.seq_relationship_logits.log_softmax(-1)
    elif "masked_lm" in original:
        tensors["masked_lm"] = computed.logits.log_softmax(-1)
    elif "next_sentence" in original:
        tensors["next_sentence"] = computed.logits.log_softmax(-1)
    elif "classifier" in original:
        tensors["classifier"] = computed.logits
    is_real = INPUTS["attention_mask"].astype(bool)
    for name, tensor in tensors.items():
        rows = is_real if tensor.ndim == 3 else slice(None)
        expected = original[name].reshape(tensor.shape)
        np.testing.assert_allclose(tensor.numpy()[rows], expected[rows], rtol=0, atol=2e-5)
