"""The layers that torch.compile fuses, as a GPU has them, and what is chosen for a GPU; the packing
of a batch is right.
"""

from dataclasses import replace

import pytest
import torch
import transformers
from packed_models import (
    LENGTHS,
    assert_gradients_alike,
    distance,
    gradients_of,
    make_batch,
    make_model,
    run,
    with_packing,
)
from torch import distributed as dist
from torch._dynamo.backends.distributed import DDPOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.models import bert_model, packed_attention
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.compiled_layers import encode_layer
from bert_recipes.models.kernels import loading
from bert_recipes.models.packed_attention import attend, choose_flash_kernel
from bert_recipes.models.padding_free import RowOffsets, make_packing, offset_layout
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.models.stock_layers import layers_of
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import RunArguments
from bert_recipes.training.batch_buffer import BatchBuffer
from bert_recipes.training.bert_trainer import BertTrainer


RAGGED = LENGTHS["ragged"]


@pytest.mark.parametrize("name", ["ragged", pytest.param("one_long", marks=pytest.mark.slow)])
def test_compiled_layers_are_the_same_function(name):
    batch = with_packing(make_batch(LENGTHS[name]))
    expected, eager_gradients = run(make_model(), batch, "eager")
    output, gradients = run(make_model(), batch, "compiled")
    torch.testing.assert_close(output.loss, expected.loss)
    assert_gradients_alike(gradients, eager_gradients, 1e-5)


@pytest.mark.slow
def test_layers_are_compiled_whole_under_ddp(tmp_path, monkeypatch):
    """Dynamo would cut them at the ends of DDP's buckets, of which the first has 1 MB."""
    monkeypatch.setattr(DDPOptimizer, "compile_fn", lambda *args: pytest.fail("cut into parts"))
    torch._dynamo.reset()
    batch = with_packing(make_batch(RAGGED))
    shape = {"hidden_size": 192, "intermediate_size": 768, "initializer_range": 0.05}
    _, expected = run(make_model(**shape), batch, "eager")
    model = make_model(**shape)
    model.bert.use_fast_layers("compiled")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/sync", rank=0, world_size=1)
    try:
        DistributedDataParallel(model)(**batch).loss.backward()
    finally:
        dist.destroy_process_group()
    assert_gradients_alike(gradients_of(model), expected, 1e-5)


def test_what_is_asked_for_or_hung_on_is_computed_although_there_is_a_packing():
    batch, model = with_packing(make_batch(RAGGED)), make_model()
    model.bert.use_fast_layers("eager")
    assert len(model(**batch, output_hidden_states=True).hidden_states) == 4
    model.config.output_hidden_states = True  # of all calls
    assert len(model(**batch).hidden_states) == 4
    model.config.output_hidden_states = False
    calls = []
    model.bert.register_forward_hook(lambda *args: calls.append(args))
    model(**batch)
    assert calls


@pytest.mark.parametrize("fast_layers", ["off", "eager"])
def test_the_trainer_trains_on_packings_as_on_padded_rows(fast_layers, small_store, tmp_path):
    """The batches have a packing where the encoder reads one, and are one buffer where they go to
    a GPU.
    """
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset.from_store(store)

    def make_trainer(layers):
        torch.manual_seed(0)
        config = pretraining_config("tiny", vocab_size=len(tokenizer), dropout=0.0)
        args = RunArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            max_steps=3,
            fast_layers=layers,
            report_to="none",
        )
        collator = DataCollatorForPreTraining(tokenizer)
        return BertTrainer(BertForPreTraining(config), args, collator, train_dataset=dataset)

    expected = make_trainer("off")
    assert "packing" not in next(iter(expected.get_train_dataloader()))
    trainer = make_trainer(fast_layers)
    make_collator = trainer.device_collator
    trainer.device_collator = lambda collator: replace(make_collator(collator), joins=True)
    buffer = next(iter(trainer.get_train_dataloader()))
    assert isinstance(buffer, BatchBuffer)
    assert ("packing" in buffer.tensors()) == (fast_layers == "eager")
    loss = trainer.train().training_loss
    assert loss == pytest.approx(expected.train().training_loss, rel=1e-5)


@pytest.mark.parametrize("is_causal", [False, True], ids=["both_ways", "left_to_right"])
def test_a_layer_is_one_graph_for_batches_of_all_sizes(is_causal):
    """A break, as where the host waits for the device, is an error with fullgraph."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = make_model(is_decoder=is_causal)
    layer, *_ = layers_of(model.bert)
    settings = layer.settings(model.config, torch.float32)
    compiled = torch.compile(encode_layer, backend="eager", fullgraph=True)
    for lengths in (RAGGED, LENGTHS["one_long"], LENGTHS["full_rows"]):
        packing = make_packing(make_batch(lengths)["attention_mask"])
        offsets = offset_layout(packing, (len(lengths), max(lengths))).offsets
        rows = torch.randn(sum(lengths), 48, requires_grad=True)
        torch._dynamo.maybe_mark_dynamic(rows, 0)
        output = compiled(rows, offsets, settings, layer.weights)
        torch.testing.assert_close(output, encode_layer(rows, offsets, settings, layer.weights))
        output.sum().backward()
    # The second graph has symbols for the numbers of sequences, too.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_attend_to_their_own_sequence(is_causal):
    """Against one sequence after the other."""
    torch.manual_seed(0)
    first_rows = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    offsets = RowOffsets(first_rows, None, first_rows, max_length=5)
    query, key, value = torch.randn(3, 9, 2, 8)
    output = attend(query, key, value, offsets, 0.0, is_causal)
    for start, end in ((0, 3), (3, 4), (4, 9)):
        heads = [tensor[start:end].transpose(0, 1) for tensor in (query, key, value)]
        expected = F.scaled_dot_product_attention(*heads, is_causal=is_causal)
        torch.testing.assert_close(output[start:end], expected.transpose(0, 1))


# What is chosen for a GPU


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

    def set_attention(name, function):
        monkeypatch.setattr(packed_attention.attention, name, function)

    monkeypatch.setattr(packed_attention, "_any_dropout", False)
    finder = packed_attention.importlib.util
    monkeypatch.setattr(finder, "find_spec", lambda name: object() if is_installed else None)
    set_attention("current_flash_attention_impl", lambda: active[-1] if active else None)
    set_attention("activate_flash_attention_impl", active.append)
    set_attention("restore_flash_attention_impl", active.clear)
    assert choose_flash_kernel(has_dropout=has_dropout, capability=capability) == expected
    assert active == (["FA3"] if expected == "FlashAttention-3" else [])
    for another_has_dropout in (True, False):  # other models of the process
        choose_flash_kernel(has_dropout=another_has_dropout, capability=capability)
        assert not active


@pytest.fixture
def as_on_gpu(monkeypatch, tmp_path):
    """Makes the arguments of a run on a GPU of a compute capability."""

    def make_arguments(capability=(9, 0), precision="bf16"):
        args = RunArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            precision=precision,
        )
        monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(loading, "_can_compile", lambda device: True)
        return args

    return make_arguments


FLASH = "flash attention needs"
HEADS = f"{FLASH} heads of a multiple of 8 up to 192, they have"


@pytest.mark.parametrize(
    ("gpu", "shape", "fast_layers", "reason"),
    [
        ({}, {}, "off", "fast_layers is off"),
        ({"precision": "fp32"}, {}, "auto", f"{FLASH} --precision bf16 or fp16"),
        ({"capability": (7, 5)}, {}, "auto", f"{FLASH} a GPU of compute capability 8.0 or higher"),
        ({}, {"hidden_size": 264, "num_attention_heads": 1}, "auto", f"{HEADS} 264"),
        ({}, {"hidden_size": 60, "num_attention_heads": 3}, "auto", f"{HEADS} 20"),
    ],
)
def test_the_log_says_why_rows_are_padded(as_on_gpu, caplog, gpu, shape, fast_layers, reason):
    args, model = as_on_gpu(**gpu), make_model(**shape)
    with caplog.at_level("INFO"):
        enable_packed_layers(model, fast_layers, args)
    assert f"stock layers on padded rows, sdpa attention: {reason}" in caplog.text
    assert not model.bert.reads_packing_on(torch.device("cuda"))


@pytest.mark.parametrize(
    ("fast_layers", "compiler"), [("auto", "fused by torch.compile"), ("plain", "not compiled")]
)
def test_a_gpu_has_packed_rows_and_the_log_says_so(as_on_gpu, caplog, fast_layers, compiler):
    args, model = as_on_gpu(), make_model()
    with caplog.at_level("INFO"):
        enable_packed_layers(model, fast_layers, args)
    assert model.bert.reads_packing_on(torch.device("cuda"))
    assert f"encoder: packed rows (no padding), {compiler}, FlashAttention-2" in caplog.text
    enable_packed_layers(model, fast_layers, args)  # another Trainer of the same model
    assert model.bert.reads_packing_on(torch.device("cuda"))
    enable_packed_layers(model, "off", args)
    assert not model.bert.reads_packing_on(torch.device("cuda"))


def test_another_attention_that_the_model_asks_for_stays(as_on_gpu, caplog):
    args, model = as_on_gpu(), make_model()
    model.set_attn_implementation("eager")
    with caplog.at_level("INFO"):
        enable_packed_layers(model, "auto", args)
    assert "stock layers on padded rows, eager attention: the model asks for it" in caplog.text
    assert bert_model.ENCODERS[transformers.BertModel] is type(model.bert)


@pytest.mark.gpu
def test_the_flash_kernel_computes_what_the_cpu_does():
    batch = make_batch(RAGGED)
    # The kernel wants heads of a multiple of 8.
    shape = {"hidden_size": 96, "num_attention_heads": 3}
    _, exact = run(make_model(**shape), batch, "off")
    batch = with_packing(batch)
    _, on_cpu = run(make_model(**shape), batch, "eager", autocast=True)
    model = make_model(**shape).cuda()
    model.bert.use_fast_layers("auto")
    packing = {name: values.cuda() for name, values in batch.pop("packing").items()}
    batch = {name: values.cuda() for name, values in batch.items()}
    with torch.autocast("cuda", torch.bfloat16):
        model(**batch, packing=packing).loss.backward()
    gradients = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
    assert distance(gradients, exact) <= 1.5 * distance(on_cpu, exact)
