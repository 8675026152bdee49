"""Every member of the family under every engine is the same training as in one process, saved and
resumed alike.

Two processes over gloo, started by `accelerate launch` with the shipped configuration. One launch
trains all members: starting takes longer than training. Precision, micro-batches and counts under
engines: test_engines.py.
"""

import json

import pytest
import torch
import transformers
from member_run import MEMBERS, member_run
from safetensors.torch import load_file
from two_processes import run_two


pytestmark = pytest.mark.slow

LAUNCHES = ("fsdp", "ddp_cpu", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3")
CLASSES = {
    "bert": transformers.BertForPreTraining,
    "roberta": transformers.RobertaForMaskedLM,
    "albert": transformers.AlbertForPreTraining,
    "electra": transformers.ElectraForPreTraining,
    "distilbert": transformers.DistilBertForMaskedLM,
}


@pytest.fixture(scope="module")
def alone(small_store, tmp_path_factory):
    """The logs of one process, and its folder."""
    folder = tmp_path_factory.mktemp("alone")
    logs = {}
    for member in MEMBERS:
        logs[member] = member_run(member, str(small_store), str(folder / member))
    return logs, folder


@pytest.fixture(scope="module", params=LAUNCHES)
def launched(request, small_store, tmp_path_factory):
    """The logs of two processes under an engine, and their folder."""
    if request.param.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    folder = tmp_path_factory.mktemp(request.param)
    settings = {"store": str(small_store), "output_dir": str(folder)}
    run_two("member_run.py", settings, launch=request.param)
    return json.loads((folder / "found.json").read_text()), folder


def weights_of(folder):
    """The weights of a model's folder by their names, with those of ELECTRA's generator."""
    weights = load_file(folder / "model.safetensors")
    if (folder / "generator").is_dir():
        generator = load_file(folder / "generator" / "model.safetensors")
        weights |= {f"generator/{name}": weight for name, weight in generator.items()}
    return weights


@pytest.mark.parametrize("member", MEMBERS)
def test_losses_and_the_gradient_are_those_of_one_process(alone, launched, member):
    logs, expected_logs = launched[0][member], alone[0][member]
    names = {"loss", "grad_norm", "eval_loss"}
    for ours, theirs in zip(logs["history"], expected_logs["history"], strict=True):
        assert ours.keys() & names == theirs.keys() & names
        for name in theirs.keys() & names:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
    gradient = load_file(launched[1] / member / "gradient.safetensors")
    expected = load_file(alone[1] / member / "gradient.safetensors")
    assert gradient.keys() == expected.keys()
    difference = torch.stack([(gradient[name] - expected[name]).norm() for name in expected]).norm()
    norm = torch.stack([tensor.norm() for tensor in expected.values()]).norm()
    assert difference < 2e-5 * norm


@pytest.mark.parametrize("member", MEMBERS)
def test_what_is_saved_has_one_name_for_each_weight_and_opens_in_the_stock_class(
    alone, launched, member
):
    folder = launched[1] / member
    weights = weights_of(folder / "model")
    expected = weights_of(alone[1] / member / "model")
    # Not the second names of tied ones.
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=2e-5)
    assert weights_of(folder / "run" / "checkpoint-2").keys() == expected.keys()
    _, info = CLASSES[member].from_pretrained(folder / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    # Stock's FSDP checkpoint has all weights twice.
    assert not list(folder.rglob("pytorch_model_fsdp.bin"))


@pytest.mark.parametrize("member", MEMBERS)
def test_a_resumed_run_ends_where_the_other_one_did(launched, member):
    logs, folder = launched[0][member], launched[1] / member
    assert logs["resumed_metrics"]["eval_loss"] == logs["metrics"]["eval_loss"]
    weights, resumed = weights_of(folder / "model"), weights_of(folder / "resumed_model")
    torch.testing.assert_close(resumed, weights, rtol=0, atol=0)
