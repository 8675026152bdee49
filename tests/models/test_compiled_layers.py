"""The layers that torch.compile fuses, as a GPU has them, compute what stock layers compute on
padded rows; the plan of a batch is right.
"""

import pytest
import torch
import transformers
from packed_models import LENGTHS, assert_gradients_alike, make_batch, make_model, run

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.models import bert_model, packed_attention
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.compiled_layers import encode_layer
from bert_recipes.models.packed_attention import attend, choose_flash_kernel
from bert_recipes.models.padding_free import RowOffsets, plan_rows, planned_layout
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.models.stock_layers import layers_of
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import RunArguments
from bert_recipes.training.batch_buffer import BatchBuffer
from bert_recipes.training.bert_trainer import BertTrainer


def planned(batch):
    return batch | {"packing": plan_rows(batch["attention_mask"], batch["labels"])}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "unplanned"])
def test_losses_and_gradients_are_those_of_padded_rows(lengths, is_planned):
    batch = make_batch(lengths)
    expected, its = run(make_model(), batch, "off")
    output, ours = run(make_model(), planned(batch) if is_planned else batch, "eager")
    for name in ("loss", "mlm_loss", "nsp_loss"):
        assert getattr(output, name).item() == pytest.approx(
            getattr(expected, name).item(), rel=1e-5
        )
    assert_gradients_alike(ours, its, 1e-5)


def test_compiled_layers_are_the_same_function():
    batches = [planned(make_batch(LENGTHS[name])) for name in ("ragged", "one_long")]
    for batch in batches:
        expected, its = run(make_model(), batch, "eager")
        output, ours = run(make_model(), batch, "compiled")
        torch.testing.assert_close(output.loss, expected.loss)
        assert_gradients_alike(ours, its, 1e-5)


def test_bfloat16_is_as_near_to_float32_as_stock_is():
    """The residual is kept in bfloat16, stock's under autocast in float32."""
    batch = make_batch(LENGTHS["ragged"])
    _, exact = run(make_model(), batch, "off")
    _, stock = run(make_model(), batch, "off", autocast=True)
    _, ours = run(make_model(), planned(batch), "eager", autocast=True)
    error, allowed = (
        sum((each[name] - exact[name]).square().sum() for name in exact) ** 0.5
        for each in (ours, stock)
    )
    assert error <= 1.2 * allowed


def test_hidden_states_of_tokens_are_those_of_padded_rows():
    batch = make_batch(LENGTHS["ragged"])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    model = make_model().eval()
    expected = model.bert(**inputs)
    model.bert.use_fast_layers("eager")
    ours = model.bert(**inputs)
    is_token = batch["attention_mask"].bool()
    torch.testing.assert_close(
        ours.last_hidden_state[is_token], expected.last_hidden_state[is_token]
    )
    assert not ours.last_hidden_state[~is_token].any()
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
    output, ours = run(make_model(), batch, "eager")
    assert output.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    assert_gradients_alike(ours, its, 1e-5)


@pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "unplanned"])
def test_questions_have_the_hidden_states_of_pads_that_stock_has(is_planned):
    """Their softmax is over all positions: pads attend to the tokens of their sequence, and nobody
    attends to them.
    """
    torch.manual_seed(0)
    model = transformers.BertForQuestionAnswering(make_model().config).train()
    batch = make_batch(LENGTHS["ragged"])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    ends = {"start_positions": torch.zeros(6, dtype=torch.long), "end_positions": torch.arange(6)}
    expected = model(**inputs, **ends)
    expected.loss.backward()
    its = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    enable_packed_layers(model, "eager")
    packing = {"packing": plan_rows(batch["attention_mask"])} if is_planned else {}
    output = model(**inputs, **ends, **packing)
    output.loss.backward()
    torch.testing.assert_close(output.start_logits, expected.start_logits)
    assert_gradients_alike(
        {name: parameter.grad for name, parameter in model.named_parameters()}, its, 1e-5
    )


def test_what_is_asked_for_or_hung_on_is_computed_although_there_is_a_plan():
    batch, model = planned(make_batch(LENGTHS["ragged"])), make_model()
    model.bert.use_fast_layers("eager")
    assert len(model(**batch, output_hidden_states=True).hidden_states) == 4
    model.config.output_hidden_states = True  # of all calls
    assert len(model(**batch).hidden_states) == 4
    model.config.output_hidden_states = False
    called = []
    model.bert.register_forward_hook(lambda *args: called.append(1))
    model(**batch)
    assert called


@pytest.mark.parametrize("fast_layers", ["off", "eager"])
def test_the_trainer_trains_on_plans_as_on_padded_rows(fast_layers, small_store, tmp_path):
    """The batches have a plan where the encoder reads one, and make one buffer where they go to a
    GPU.
    """
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset(
        store.train, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint
    )
    losses = []
    for layers, joins in (("off", False), (fast_layers, True)):
        torch.manual_seed(0)
        model = BertForPreTraining(
            pretraining_config("tiny", vocab_size=len(tokenizer), dropout=0.0)
        )
        args = RunArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            max_steps=3,
            fast_layers=layers,
            report_to="none",
        )
        trainer = BertTrainer(
            model, args, DataCollatorForPreTraining(tokenizer), train_dataset=dataset
        )
        if joins:
            make_collator = trainer.device_collator
            trainer.device_collator = lambda collator, make=make_collator: _joining(make(collator))
        batch = next(iter(trainer.get_train_dataloader()))
        assert isinstance(batch, BatchBuffer) == joins
        assert ("packing" in (batch.tensors() if joins else batch)) == (layers == "eager")
        losses.append(trainer.train().training_loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def _joining(collator):
    object.__setattr__(collator, "joins", True)
    return collator


@pytest.mark.parametrize("is_causal", [False, True], ids=["both_ways", "left_to_right"])
def test_a_layer_is_one_graph_for_batches_of_all_sizes(is_causal):
    """A break, as where the host waits for the device, is an error with fullgraph."""
    torch._dynamo.reset()
    model = make_model(is_decoder=is_causal)
    layer, *_ = layers_of(model.bert)
    settings = layer.settings(model.config, torch.float32)
    compiled = torch.compile(encode_layer, backend="aot_eager", fullgraph=True)
    graphs = []
    torch._dynamo.utils.counters.clear()
    for lengths in (LENGTHS["ragged"], LENGTHS["one_long"], LENGTHS["full_rows"]):
        layout = planned_layout(
            plan_rows(make_batch(lengths)["attention_mask"]), (len(lengths), max(lengths))
        )
        rows = torch.randn(sum(lengths), 48, requires_grad=True)
        torch._dynamo.maybe_mark_dynamic(rows, 0)
        output = compiled(rows, layout.offsets, settings, layer.weights)
        expected = encode_layer(rows, layout.offsets, settings, layer.weights)
        torch.testing.assert_close(output, expected)
        output.sum().backward()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert (
        graphs[-1] <= 2
    )  # the second has other numbers of sequences, which then become symbols, too


def test_rows_attend_to_their_own_sequence():
    """Against one sequence after the other."""
    torch.manual_seed(0)
    lengths = [3, 1, 5]
    first_rows = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    offsets = RowOffsets(first_rows, None, first_rows, max_length=5)
    query, key, value = (torch.randn(9, 2, 8) for _ in range(3))
    for is_causal in (False, True):
        ours = attend(query, key, value, offsets, 0.0, is_causal)
        parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
        expected = [
            torch.nn.functional.scaled_dot_product_attention(
                *(part.transpose(0, 1) for part in three), is_causal=is_causal
            ).transpose(0, 1)
            for three in parts
        ]
        torch.testing.assert_close(ours, torch.cat(expected))


@pytest.mark.parametrize(
    ("is_installed", "has_dropout", "capability", "expected"),
    [
        (True, False, (9, 0), "FlashAttention-3"),
        (True, True, (9, 0), "FlashAttention-2"),  # it has no dropout
        (True, False, (8, 0), "FlashAttention-2"),
        (False, False, (9, 0), "FlashAttention-2"),
    ],
)
def test_the_flash_kernel_is_the_fastest_that_fits(
    monkeypatch, is_installed, has_dropout, capability, expected
):
    active = []
    monkeypatch.setattr(
        packed_attention.importlib.util,
        "find_spec",
        lambda name: object() if is_installed else None,
    )
    monkeypatch.setattr(
        packed_attention.attention,
        "current_flash_attention_impl",
        lambda: active[-1] if active else None,
    )
    monkeypatch.setattr(packed_attention.attention, "activate_flash_attention_impl", active.append)
    monkeypatch.setattr(packed_attention.attention, "restore_flash_attention_impl", active.clear)
    assert choose_flash_kernel(has_dropout=has_dropout, capability=capability) == expected
    assert active == (["FA3"] if expected == "FlashAttention-3" else [])
    choose_flash_kernel(has_dropout=True, capability=capability)  # another model of the process
    assert not active


@pytest.mark.parametrize(
    ("changes", "shape", "reason"),
    [
        ({"fast_layers": "off"}, {}, "fast_layers is off"),
        ({"precision": "fp32"}, {}, "flash attention needs --precision bf16 or fp16"),
        ({}, {}, "flash attention needs a GPU of compute capability 8.0 or higher"),
        (
            {"precision": "fp16"},
            {"hidden_size": 264, "num_attention_heads": 1},
            "flash attention needs heads of a multiple of 8 up to 256, they have 264",
        ),
        (
            {"precision": "fp16"},
            {"hidden_size": 60, "num_attention_heads": 3},
            "flash attention needs heads of a multiple of 8 up to 256, they have 20",
        ),
    ],
)
def test_the_log_says_why_rows_are_padded(changes, shape, reason, tmp_path, monkeypatch, caplog):
    args = RunArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        precision=changes.get("precision", "bf16").replace("fp16", "bf16"),
    )
    is_old = not changes
    monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: (7, 5) if is_old else (9, 0)
    )
    model = make_model(**shape)
    with caplog.at_level("INFO"):
        enable_packed_layers(model, changes.get("fast_layers", "auto"), args)
    assert f"stock layers on padded rows, sdpa attention: {reason}" in caplog.text
    assert not model.bert.reads_plans_on(torch.device("cuda"))


@pytest.mark.parametrize(
    ("fast_layers", "compiler"), [("auto", "fused by torch.compile"), ("plain", "not compiled")]
)
def test_a_gpu_has_packed_rows_and_the_log_says_so(
    fast_layers, compiler, tmp_path, monkeypatch, caplog
):
    args = RunArguments(output_dir=str(tmp_path), use_cpu=True, precision="bf16")
    monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    model = make_model()
    with caplog.at_level("INFO"):
        enable_packed_layers(model, fast_layers, args)
    assert model.bert.reads_plans_on(torch.device("cuda"))
    assert f"encoder: packed rows (no padding), {compiler}, FlashAttention-2" in caplog.text
    enable_packed_layers(model, fast_layers, args)  # another Trainer of the same model
    assert model.bert.reads_plans_on(torch.device("cuda"))
    enable_packed_layers(model, "off", args)
    assert not model.bert.reads_plans_on(torch.device("cuda"))


def test_another_attention_that_the_model_asks_for_stays(tmp_path, monkeypatch, caplog):
    args = RunArguments(output_dir=str(tmp_path), use_cpu=True, precision="bf16")
    monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    model = make_model()
    model.set_attn_implementation("eager")
    with caplog.at_level("INFO"):
        enable_packed_layers(model, "auto", args)
    assert "stock layers on padded rows, eager attention: the model asks for it" in caplog.text
    assert bert_model.ENCODERS[transformers.BertModel] is type(model.bert)


@pytest.mark.gpu
def test_the_flash_kernel_computes_what_the_cpu_does():
    batch = planned(make_batch(LENGTHS["ragged"]))
    # The kernel wants heads of a multiple of 8.
    shape = {"hidden_size": 96, "num_attention_heads": 3}
    _, expected = run(
        make_model(**shape), {name: batch[name] for name in batch if name != "packing"}, "off"
    )
    _, near = run(make_model(**shape), batch, "eager", autocast=True)
    model = make_model(**shape).cuda()
    model.bert.use_fast_layers("auto")
    batch["packing"] = {name: value.cuda() for name, value in batch["packing"].items()}
    batch = {name: value if name == "packing" else value.cuda() for name, value in batch.items()}
    with torch.autocast("cuda", torch.bfloat16):
        model(**batch).loss.backward()
    ours = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
    error, allowed = (
        sum((each[name] - expected[name]).square().sum() for name in expected) ** 0.5
        for each in (ours, near)
    )
    assert error <= 1.5 * allowed
