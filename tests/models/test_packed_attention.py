"""Stock layers on packed rows, as a GPU has them, compute what they compute on padded ones; the plan of a batch is right."""

import pytest
import torch
from packed_models import LENGTHS, assert_gradients_alike, make_batch, make_model, run

from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.packed_attention import PACKED_SDPA
from bert_recipes.models.padding_free import NUM_SIZES, plan_rows
from bert_recipes.training.arguments import RunArguments


def packed(**changes):
    model = make_model(**changes)
    model.bert.use_packed_attention()
    return model


def planned(batch):
    shape = tuple(batch["input_ids"].shape)
    return batch | {"packing": plan_rows(batch["attention_mask"], shape, batch["labels"])}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "unplanned"])
def test_losses_and_gradients_are_those_of_padded_rows(lengths, is_planned):
    batch = make_batch(lengths)
    expected, its = run(make_model(), batch, "off")
    output, ours = run(packed(), planned(batch) if is_planned else batch, "off")
    for name in ("loss", "mlm_loss", "nsp_loss"):
        assert getattr(output, name).item() == pytest.approx(getattr(expected, name).item(), rel=1e-5)
    assert_gradients_alike(ours, its, 1e-5)


def test_bfloat16_is_as_near_to_float32_as_stock_is():
    batch = make_batch(LENGTHS["ragged"])
    _, exact = run(make_model(), batch, "off")
    _, stock = run(make_model(), batch, "off", autocast=True)
    _, ours = run(packed(), planned(batch), "off", autocast=True)
    error, allowed = (
        sum((each[name] - exact[name]).square().sum() for name in exact) ** 0.5 for each in (ours, stock)
    )
    assert error <= 1.2 * allowed


def test_hidden_states_of_tokens_are_those_of_padded_rows():
    batch = make_batch(LENGTHS["ragged"])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    ours, expected = packed().bert.eval()(**inputs), make_model().bert.eval()(**inputs)
    is_token = batch["attention_mask"].bool()
    torch.testing.assert_close(ours.last_hidden_state[is_token], expected.last_hidden_state[is_token])
    torch.testing.assert_close(ours.pooler_output, expected.pooler_output)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_plan_has_every_token_once_and_few_sizes(lengths):
    batch = make_batch(lengths)
    plan = planned(batch)["packing"]
    mask, labels = batch["attention_mask"].flatten(), batch["labels"].flatten()
    places, offsets = plan["places"], plan["offsets"]
    count, step = int(mask.sum()), -(-mask.numel() // NUM_SIZES)
    assert len(places) == len(places.unique())
    assert mask[places[:count]].all()
    assert not mask[places[count:]].any()
    assert len(places) % step == 0 or len(places) == mask.numel()
    assert offsets[: len(lengths) + 1].tolist() == [0, *torch.tensor(lengths).cumsum(0).tolist()]
    assert offsets[-1] == len(places)
    assert offsets.diff().min() >= 0
    assert offsets.diff().max() <= max(lengths)
    real = plan["targets"] >= 0
    assert torch.equal(places[plan["predicted"][real]], (labels >= 0).nonzero()[:, 0])
    assert torch.equal(plan["targets"][real], labels[labels >= 0])


def test_a_planned_step_is_one_graph():
    torch._dynamo.reset()
    batch, model = planned(make_batch(LENGTHS["ragged"])), packed()
    compiled = torch.compile(
        model, backend="aot_eager", fullgraph=True
    )  # a break, as where the host waits, is an error
    count = torch.tensor(30.0)
    loss = compiled(**batch, num_items_in_batch=count, num_pairs_in_batch=count).loss
    loss.backward()
    expected = packed()(**batch, num_items_in_batch=count, num_pairs_in_batch=count).loss
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fast_layers": "off"}, "fast_layers is off"),
        ({"precision": "fp32"}, "needs --precision bf16"),
        ({}, "compute capability"),
    ],
)
def test_the_log_says_why_rows_are_padded(changes, reason, tmp_path, monkeypatch, caplog):
    args = RunArguments(output_dir=str(tmp_path), use_cpu=True, **({"precision": "bf16"} | changes))
    is_old = not changes
    monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5) if is_old else (9, 0))
    model = make_model()
    with caplog.at_level("INFO"):
        enable_packed_layers(model, args.fast_layers, args)
    assert f"padded rows, with sdpa: {reason}" in caplog.text or reason in caplog.text
    assert not model.bert.packs_rows


def test_a_gpu_has_packed_rows_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    args = RunArguments(output_dir=str(tmp_path), use_cpu=True, precision="bf16")
    monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    model = make_model()
    with caplog.at_level("INFO"):
        enable_packed_layers(model, "auto", args)
    model.save_pretrained(tmp_path)
    assert PACKED_SDPA not in (tmp_path / "config.json").read_text()
    assert model.bert.packs_rows
    assert model.config._attn_implementation == PACKED_SDPA
    assert f"stock's on packed rows, with {PACKED_SDPA}; --torch_compile true" in caplog.text


@pytest.mark.gpu
def test_the_flash_kernel_computes_what_the_cpu_does():
    batch = planned(make_batch(LENGTHS["ragged"]))
    # The kernel wants heads of a multiple of 8.
    shape = {"hidden_size": 96, "num_attention_heads": 3}
    _, expected = run(make_model(**shape), {name: batch[name] for name in batch if name != "packing"}, "off")
    _, near = run(packed(**shape), batch, "off", autocast=True)
    model = packed(**shape).cuda()
    batch["packing"] = {name: value.cuda() for name, value in batch["packing"].items()}
    batch = {name: value if name == "packing" else value.cuda() for name, value in batch.items()}
    with torch.autocast("cuda", torch.bfloat16):
        model(**batch).loss.backward()
    ours = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
    error, allowed = (
        sum((each[name] - expected[name]).square().sum() for name in expected) ** 0.5 for each in (ours, near)
    )
    assert error <= 1.5 * allowed
