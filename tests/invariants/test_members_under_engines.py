"""Every member of the family under every engine is the same training as in one process, saved and
resumed alike.

Two processes over gloo, started by `accelerate launch` with the shipped configuration. One launch
trains all members: starting takes longer than training. Precision, micro-batches and counts under
engines: test_engines.py.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
import transformers
from member_run import MEMBERS, member_run
from safetensors.torch import load_file


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
    return {
        member: member_run(member, str(small_store), str(folder / member)) for member in MEMBERS
    }, folder


@pytest.fixture(scope="module", params=LAUNCHES)
def launched(request, repository, small_store, tmp_path_factory):
    """The logs of two processes under an engine, and their folder."""
    if request.param.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    folder = tmp_path_factory.mktemp(request.param)
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--main_process_port",
        "0",
        "--num_processes",
        "2",
    ]
    command += [
        "--config_file",
        f"accelerate_configs/{request.param}.yaml",
        "tests/invariants/member_run.py",
    ]
    command += [
        json.dumps({"store": str(small_store), "output_dir": str(folder)}),
        "--use_cpu",
        "true",
    ]
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    options = {
        "capture_output": True,
        "text": True,
        "timeout": 900,
        "cwd": repository,
        "env": environment,
    }
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "found.json").read_text()), folder


def weights_of(folder):
    """Return the weights of a model's folder by their names; those of ELECTRA's generator begin
    with its folder's.
    """
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
    gradient, expected = (
        load_file(folder / member / "gradient.safetensors") for _, folder in (launched, alone)
    )
    assert gradient.keys() == expected.keys()
    difference = torch.stack([(gradient[name] - expected[name]).norm() for name in expected]).norm()
    assert difference < 2e-5 * torch.stack([each.norm() for each in expected.values()]).norm()


@pytest.mark.parametrize("member", MEMBERS)
def test_what_is_saved_has_one_name_for_each_weight_and_opens_in_the_stock_class(
    alone, launched, member
):
    folder = launched[1] / member
    weights, expected = (weights_of(each / member / "model") for _, each in (launched, alone))
    # Not the second names of tied ones.
    assert weights.keys() == expected.keys()
    assert weights_of(folder / "run" / "checkpoint-2").keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=2e-5)
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
    assert weights.keys() == resumed.keys()
    assert all(torch.equal(weight, resumed[name]) for name, weight in weights.items())
