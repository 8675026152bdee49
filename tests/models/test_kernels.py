"""The compiled kernels compute what the torch operations of plain.py compute, masks included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bert_recipes.models.kernels import loading, plain
from bert_recipes.models.kernels.loading import load_kernels


OFFSETS = {
    "ragged": [0, 5, 45, 173, 174, 251],
    "alike": [0, 64, 128],
    "single": [0, 1],
    "odd": [0, 33, 65, 96],
}
HEADS, SIZE = 3, 16
WIDTH = HEADS * SIZE
SEED = -0x123456789ABCDEF


@pytest.fixture(scope="module")
def compiled():
    kernels = load_kernels("auto", torch.device("cpu"))
    if kernels is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    return kernels


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request):
    return request.param


@pytest.fixture(params=OFFSETS)
def offsets(request):
    return torch.tensor(OFFSETS[request.param])


@pytest.fixture(params=[0.0, 0.1], ids=["no_dropout", "dropout"])
def p(request):
    return request.param


def assert_alike(ours, expected):
    """Equal to rounding: of float32, or one unit in the last place of bfloat16 here and there."""
    ours = ours if isinstance(ours, tuple | list) else [ours]
    expected = expected if isinstance(expected, tuple | list) else [expected]
    for own, other in zip(ours, expected, strict=True):
        assert (own.shape, own.dtype) == (other.shape, other.dtype)
        step = 2e-6 if own.dtype == torch.float32 else 2**-7
        scale = other.float().abs().mean().item() + 1e-12
        torch.testing.assert_close(
            own.float(), other.float(), rtol=max(step, 1e-5), atol=10 * step * scale
        )


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def both(compiled, name, *arguments):
    """Call both implementations on copies; results, and the copies that they may have written
    to.
    """
    results = []
    for kernels in (compiled, plain):
        own = [
            argument.clone() if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ]
        results.append(
            (getattr(kernels, name)(*own), [each for each in own if isinstance(each, torch.Tensor)])
        )
    (ours, our_inputs), (expected, their_inputs) = results
    assert_alike(ours, expected)
    assert_alike(our_inputs, their_inputs)
    return expected


def test_heads_are_split_and_merged(compiled, offsets, dtype):
    total, length = int(offsets[-1]), int(offsets.diff().max())
    packed, bias = randn(total, 3 * WIDTH, dtype=dtype), randn(3 * WIDTH, seed=1)
    split = both(compiled, "split_heads", packed, bias, offsets, HEADS, length, 3)
    assert split.shape == (3, len(offsets) - 1, HEADS, length, SIZE)
    both(compiled, "merge_heads_", torch.zeros_like(packed), split, offsets)
    same = both(compiled, "split_heads", packed, None, offsets, HEADS, length + 5, 3)
    assert torch.equal(compiled.merge_heads_(torch.zeros_like(packed), same, offsets), packed)


@pytest.mark.parametrize("with_pads", [False, True])
def test_attention_probabilities_and_their_gradient(compiled, offsets, dtype, p, with_pads):
    """Pads can be rows, too, which nobody attends to."""
    length = int(offsets.diff().max())
    keys = (offsets.diff() + 1) // 2 if with_pads else offsets.diff()
    scores = randn(len(offsets) - 1, HEADS, length, length, dtype=dtype) * 4
    both(compiled, "softmax_dropout_", scores, offsets, keys, 0.25, SEED, 2, p)
    plain.softmax_dropout_(scores, offsets, keys, 0.25, SEED, 2, p)
    assert not any(scores[n, :, :, count:].any() for n, count in enumerate(keys.tolist()))
    rows = scores.float().sum(dim=-1)
    places = torch.arange(length) < offsets.diff()[:, None]
    torch.testing.assert_close(rows, places[:, None].float().expand_as(rows), rtol=0, atol=0.02)
    grad = randn(*scores.shape, dtype=dtype, seed=1)
    both(compiled, "softmax_dropout_backward_", grad, scores, offsets, keys, 0.25, SEED, 2, p)


@pytest.mark.parametrize("width", [48, 100, 128, 7])
def test_dropout_residual_and_norm(compiled, width, dtype, p):
    values, residual, grad = (randn(37, width, dtype=dtype, seed=seed) for seed in range(3))
    bias, weight, shift = (randn(width, seed=seed) for seed in range(3, 6))
    _, normal, inverse = both(
        compiled, "dropout_add_norm", values, bias, residual, weight, shift, 1e-12, SEED, 1, p
    )
    both(compiled, "dropout_add_norm_backward", grad, normal, inverse, weight, SEED, 1, p)


@pytest.mark.parametrize("exact", [True, False])
def test_gelu(compiled, dtype, exact):
    values, grad, bias = (
        randn(41, 100, dtype=dtype) * 3,
        randn(41, 100, dtype=dtype, seed=1),
        randn(100, seed=2),
    )
    both(compiled, "bias_gelu", values, bias, exact)
    both(compiled, "bias_gelu_backward_", grad, values, bias, exact)


def test_gelu_of_large_numbers(compiled):
    values = torch.tensor([[-1e4, -100.0, -30.0, -9.0, 0.0, 9.0, 30.0, 100.0, 1e4]])
    for exact in (True, False):
        out = compiled.bias_gelu(values, torch.zeros(9), exact)
        torch.testing.assert_close(out, values.clamp(min=0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("filling", [0, 29])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_cross_entropy(compiled, dtype, needs_gradient, filling):
    logits, bias = randn(19, 1003, dtype=dtype) * 5, randn(1003 - filling, seed=1)
    targets = torch.arange(19) * 50
    targets[[3, 18]] = -100
    losses, of_bias = both(compiled, "cross_entropy_", logits, bias, targets, 0.25, needs_gradient)
    assert losses[3] == losses[18] == 0 < losses[0]
    assert of_bias.any() == needs_gradient


def test_column_sums(compiled, dtype):
    both(compiled, "column_sum", randn(301, 70, dtype=dtype))


def test_several_threads_compute_what_one_computes(compiled):
    """Tests have one thread; sums over rows have a part for each."""
    script = Path(__file__).with_name("many_threads.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_dropout_is_what_is_asked_for_and_a_function_of_its_key(compiled):
    ones = torch.ones(1_000_003)
    out = compiled.dropout(ones, SEED, 3, 0.1)
    assert torch.equal(out, plain.dropout(ones, SEED, 3, 0.1))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.9).item()}
    # Five standard errors of the share, and no correlation of neighbours, of streams or of seeds.
    dropped = (out == 0).double()
    assert abs(dropped.mean() - 0.1) < 5 * (0.09 / len(ones)) ** 0.5
    others = [
        compiled.dropout(ones, *key, 0.1) for key in ((SEED, 4), (SEED + 1, 3), (SEED + 2**32, 3))
    ]
    shifted = [out.roll(distance) for distance in (1, 2, 16, 128, 768)]
    for other in (*others, *shifted):
        correlation = torch.corrcoef(torch.stack([dropped, (other == 0).double()]))[0, 1]
        assert abs(correlation) < 5 / len(ones) ** 0.5


def test_what_the_kernels_cannot_take_is_refused(compiled):
    with pytest.raises(RuntimeError, match="float32 or bfloat16 only"):
        compiled.column_sum(torch.ones(2, 2, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="outside of the vocabulary"):
        compiled.cross_entropy_(torch.ones(1, 8), torch.ones(7), torch.tensor([7]), 1.0, True)
    with pytest.raises(RuntimeError, match="contiguous"):
        compiled.column_sum(torch.ones(2, 3).t())


def test_numbers_of_another_type_are_refused(compiled):
    """They would be read as something else."""
    scores, offsets, keys = torch.ones(1, 1, 2, 2), torch.tensor([0, 2]), torch.tensor([2])
    for wrong in ((offsets.float(), keys), (offsets, keys.float())):
        with pytest.raises(RuntimeError, match="is expected, not"):
            compiled.softmax_dropout_(scores, *wrong, 1.0, 0, 0, 0.0)
    with pytest.raises(RuntimeError, match="is expected, not"):
        compiled.cross_entropy_(
            torch.ones(1, 8), torch.ones(8), torch.tensor([7], dtype=torch.int32), 1.0, True
        )
    with pytest.raises(RuntimeError, match="rows of another number"):
        compiled.split_heads(torch.ones(3, 6), None, offsets, 1, 2, 1)


OFFSETS_OF_TWO, KEYS = torch.tensor([0, 2, 3]), torch.tensor([2, 1])
FEW, MANY = torch.ones(3), torch.ones(5)
ROWS = torch.ones(3, 4)
OK = torch.ones(4)
SCORES = torch.ones(2, 1, 2, 2)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("split_heads", (torch.ones(3, 4), FEW, OFFSETS_OF_TWO, 2, 2, 1), "bias of another size"),
        (
            "split_heads",
            (torch.ones(3, 4), None, OFFSETS_OF_TWO, 3, 2, 1),
            "are no 1 parts of 3 heads",
        ),
        ("split_heads", (torch.ones(3, 4), None, OFFSETS_OF_TWO, 2, 1, 1), "2 rows in 1 positions"),
        (
            "split_heads",
            (torch.ones(3, 4), None, torch.tensor([0, 4, 3]), 2, 4, 1),
            "sequence of -1 rows",
        ),
        (
            "split_heads",
            (torch.ones(3, 4), None, torch.tensor([1, 2, 3]), 2, 4, 1),
            "offsets begin at 1",
        ),
        (
            "merge_heads_",
            (ROWS, torch.ones(1, 3, 2, 2, 2), OFFSETS_OF_TWO),
            "offsets of another size",
        ),
        (
            "merge_heads_",
            (ROWS, torch.ones(1, 2, 2, 1, 2), OFFSETS_OF_TWO),
            "2 rows in 1 positions",
        ),
        (
            "merge_heads_",
            (ROWS, torch.ones(1, 2, 2, 2, 1), OFFSETS_OF_TWO),
            "rows of another shape",
        ),
        (
            "softmax_dropout_",
            (torch.ones(2, 1, 2, 3), OFFSETS_OF_TWO, KEYS, 1.0, 0, 0, 0.0),
            "scores of another shape",
        ),
        (
            "softmax_dropout_",
            (SCORES, torch.tensor([0, 2]), KEYS, 1.0, 0, 0, 0.0),
            "offsets of another size",
        ),
        (
            "softmax_dropout_",
            (SCORES, OFFSETS_OF_TWO, KEYS[:1], 1.0, 0, 0, 0.0),
            "keys of another size",
        ),
        (
            "softmax_dropout_",
            (SCORES, OFFSETS_OF_TWO, KEYS + 1, 1.0, 0, 0, 0.0),
            "3 keys in 2 positions",
        ),
        (
            "softmax_dropout_backward_",
            (SCORES, torch.ones(2, 1, 2, 1), OFFSETS_OF_TWO, KEYS, 1.0, 0, 0, 0.0),
            "probabilities of another shape",
        ),
        ("dropout_add_norm", (ROWS, MANY, ROWS, OK, OK, 1e-12, 0, 0, 0.0), "bias of another size"),
        (
            "dropout_add_norm",
            (ROWS, OK, ROWS[:2], OK, OK, 1e-12, 0, 0, 0.0),
            "residual of another shape",
        ),
        ("dropout_add_norm", (ROWS, OK, ROWS, FEW, OK, 1e-12, 0, 0, 0.0), "weight of another size"),
        ("dropout_add_norm", (ROWS, OK, ROWS, OK, FEW, 1e-12, 0, 0, 0.0), "shift of another size"),
        (
            "dropout_add_norm_backward",
            (ROWS, ROWS[:2], FEW, OK, 0, 0, 0.0),
            "normalised rows of another shape",
        ),
        (
            "dropout_add_norm_backward",
            (ROWS, ROWS, FEW[:2], OK, 0, 0, 0.0),
            "inverse of another size",
        ),
        ("dropout_add_norm_backward", (ROWS, ROWS, FEW, FEW, 0, 0, 0.0), "weight of another size"),
        ("bias_gelu", (ROWS, FEW, True), "bias of another size"),
        ("bias_gelu_backward_", (ROWS[:2], ROWS, OK, True), "gradient of another shape"),
        ("bias_gelu_backward_", (ROWS, ROWS, FEW, True), "bias of another size"),
        ("column_sum", (FEW,), "two dimensions"),
        ("cross_entropy_", (ROWS, OK, torch.tensor([1, 2]), 1.0, True), "targets of another size"),
    ],
)
def test_sizes_that_do_not_belong_together_are_refused(compiled, name, arguments, message):
    """Memory beside the tensors would be read or written."""
    with pytest.raises(RuntimeError, match=message):
        getattr(compiled, name)(*arguments)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", "RuntimeError"),
        (
            "Error building extension\n\n[1/4] c++ -O3\na.cpp:3:1: error: no such thing\nninja: "
            "stopped",
            "a.cpp:3:1: error: no such thing",
        ),
        ("[Errno 30] Read-only file system", "[Errno 30] Read-only file system"),
    ],
)
def test_a_build_that_fails_is_one_line_and_stock_layers(monkeypatch, caplog, message, expected):
    def fails():
        raise RuntimeError(message)

    monkeypatch.setattr(loading, "_why_not", lambda: None)
    monkeypatch.setattr(loading, "_build", fails)
    loading._compiled.cache_clear()
    try:
        with caplog.at_level("WARNING"):
            assert load_kernels("auto", torch.device("cpu")) is None
    finally:
        loading._compiled.cache_clear()
    assert f"no compiled kernels ({expected}): stock layers" in caplog.text


def test_a_cache_folder_that_cannot_be_made_is_one_line_and_stock_layers(
    monkeypatch, tmp_path, caplog
):
    """As with a home folder that is missing or cannot be written to; `auto` is the default of every
    Trainer.
    """
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "below"))
    caches = (loading._compiled, loading._library)
    for cache in caches:
        cache.cache_clear()
    try:
        with caplog.at_level("WARNING"):
            assert load_kernels("auto", torch.device("cpu")) is None
    finally:
        for cache in caches:
            cache.cache_clear()
    assert "no compiled kernels (" in caplog.text
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        assert "Not a directory" in caplog.text


@pytest.mark.parametrize(
    ("tool", "advice"), [("c++", "install a C++ compiler"), ("ninja", "pip install ninja")]
)
def test_a_missing_tool_is_named(monkeypatch, tmp_path, tool, advice):
    monkeypatch.setattr(loading, "_library", lambda: tmp_path / "none.so")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(
        loading.shutil, "which", lambda name: None if name == tool else f"/bin/{name}"
    )
    reason = loading._why_not()
    if not reason.startswith(tool):
        pytest.skip(reason)
    assert advice in reason


def test_off_and_other_devices_have_none():
    assert load_kernels("off", torch.device("cpu")) is None
    assert load_kernels("auto", torch.device("meta")) is None
    assert load_kernels("plain", torch.device("cpu")) is plain
