"""Stock layers on packed rows, as a GPU has them, compute what they compute on padded ones; the plan of a batch is right."""

import pytest
import torch
from packed_models import LENGTHS, assert_gradients_alike, make_batch, make_model, run

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.packed_attention import PACKED_SDPA
from bert_recipes.models.padding_free import plan_rows
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import RunArguments
from bert_recipes.training.bert_trainer import BertTrainer


def packed(**changes):
    model = make_model(**changes)
    model.bert.use_packed_attention()
    return model


def planned(batch):
    return batch | {"packing": plan_rows(batch["attention_mask"], batch["labels"])}


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
def test_a_plan_has_every_token_once(lengths):
    batch = make_batch(lengths)
    plan, labels = planned(batch)["packing"], batch["labels"].flatten()
    assert torch.equal(plan["places"], batch["attention_mask"].flatten().nonzero()[:, 0])
    assert plan["offsets"].tolist() == [0, *torch.tensor(lengths).cumsum(0).tolist()]
    assert torch.equal(plan["places"][plan["predicted"]], (labels >= 0).nonzero()[:, 0])
    assert torch.equal(plan["targets"], labels[labels >= 0])


def test_without_a_mask_every_position_is_a_row():
    batch = make_batch(LENGTHS["full_rows"])
    del batch["attention_mask"]
    expected, its = run(make_model(), batch, "off")
    output, ours = run(packed(), batch, "off")
    assert output.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    assert_gradients_alike(ours, its, 1e-5)


def test_what_is_asked_for_or_hung_on_is_computed_although_there_is_a_plan():
    batch, model = planned(make_batch(LENGTHS["ragged"])), packed()
    assert len(model(**batch, output_hidden_states=True).hidden_states) == 4
    model.config.output_hidden_states = True  # of all calls
    assert len(model(**batch).hidden_states) == 4
    model.config.output_hidden_states = False
    called = []
    model.bert.register_forward_hook(lambda *args: called.append(1))
    model(**batch)
    assert called


def test_the_trainer_trains_on_plans_as_on_padded_rows(small_store, tmp_path):
    """`BertTrainer` gives its collator the planning where the model packs rows."""
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset(store.train, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint)
    losses = []
    for is_packed in (False, True):
        torch.manual_seed(0)
        model = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer), dropout=0.0))
        args = RunArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=3, fast_layers="off", report_to="none")
        trainer = BertTrainer(model, args, DataCollatorForPreTraining(tokenizer), train_dataset=dataset)
        if is_packed:  # as `enable_packed_layers` does on a GPU
            model.bert.use_packed_attention()
            trainer._enter(trainer.phases[0])
        assert ("packing" in next(iter(trainer.get_train_dataloader()))) == is_packed
        losses.append(trainer.train().training_loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


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
        ({"precision": "fp32"}, "flash attention needs --precision bf16 or fp16"),
        ({}, "flash attention needs a GPU of compute capability 8.0 or higher"),
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
    assert f"padded rows, with sdpa: {reason}" in caplog.text
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
    enable_packed_layers(model, "auto", args)  # another Trainer of the same model
    assert model.bert.packs_rows
    enable_packed_layers(model, "off", args)
    assert not model.bert.packs_rows


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
