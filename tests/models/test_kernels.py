"""The compiled kernels compute what the torch operations of plain.py compute, masks included."""

import pytest
import torch
from cpu_kernels import need_cpu_kernels

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


@pytest.fixture(params=[1, 4], ids=["one_thread", "four_threads"])
def compiled(request):
    """On several threads, sums over rows have a part for each."""
    kernels = need_cpu_kernels()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield kernels
    torch.set_num_threads(num_threads)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request):
    return request.param


@pytest.fixture(params=OFFSETS)
def offsets(request):
    return torch.tensor(OFFSETS[request.param])


@pytest.fixture(params=[0.0, 0.1], ids=["no_dropout", "dropout"])
def dropout(request):
    return request.param


def assert_alike(results, references):
    """Equal to rounding: of float32, or one unit in the last place of bfloat16 here and there."""
    if isinstance(results, torch.Tensor):
        results, references = [results], [references]
    for result, reference in zip(results, references, strict=True):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        step = 2e-6 if result.dtype == torch.float32 else 2**-7
        scale = reference.float().abs().mean().item() + 1e-12
        torch.testing.assert_close(
            result.float(), reference.float(), rtol=max(step, 1e-5), atol=10 * step * scale
        )


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call_on_copies(kernels, name, arguments):
    """The result of a kernel, and the copies of its tensors, which it may have written to."""
    copies = [value.clone() if torch.is_tensor(value) else value for value in arguments]
    result = getattr(kernels, name)(*copies)
    return result, [value for value in copies if torch.is_tensor(value)]


def both(compiled, name, *arguments):
    """Call both implementations, compare them, and return the result of plain.py."""
    result, tensors = call_on_copies(compiled, name, arguments)
    expected, expected_tensors = call_on_copies(plain, name, arguments)
    assert_alike(result, expected)
    assert_alike(tensors, expected_tensors)
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
def test_attention_probabilities_and_their_gradient(compiled, offsets, dtype, dropout, with_pads):
    """Pads can be rows, too, which nobody attends to."""
    length = int(offsets.diff().max())
    keys = (offsets.diff() + 1) // 2 if with_pads else offsets.diff()
    settings = (offsets, keys, 0.25, SEED, 2, dropout)
    scores = randn(len(offsets) - 1, HEADS, length, length, dtype=dtype) * 4
    both(compiled, "softmax_dropout_", scores, *settings)
    plain.softmax_dropout_(scores, *settings)
    assert not any(scores[n, :, :, count:].any() for n, count in enumerate(keys.tolist()))
    sums = scores.float().sum(dim=-1)
    is_row = torch.arange(length) < offsets.diff()[:, None]
    torch.testing.assert_close(
        sums,
        is_row[:, None].float().expand_as(sums),
        rtol=0,
        atol=0.02,
    )
    gradient = randn(*scores.shape, dtype=dtype, seed=1)
    both(compiled, "softmax_dropout_backward_", gradient, scores, *settings)


@pytest.mark.parametrize("width", [48, 100, 128, 7])
def test_dropout_residual_and_norm(compiled, width, dtype, dropout):
    values, residual, gradient = (randn(601, width, dtype=dtype, seed=seed) for seed in range(3))
    bias, weight, shift = (randn(width, seed=seed) for seed in range(3, 6))
    key = (SEED, 1, dropout)
    inputs = (values, bias, residual, weight, shift, 1e-12)
    _, normal, inverse = both(compiled, "dropout_add_norm", *inputs, *key)
    both(compiled, "dropout_add_norm_backward", gradient, normal, inverse, weight, *key)


@pytest.mark.parametrize("exact", [True, False])
def test_gelu(compiled, dtype, exact):
    values = randn(401, 100, dtype=dtype) * 3
    gradient = randn(401, 100, dtype=dtype, seed=1)
    bias = randn(100, seed=2)
    both(compiled, "bias_gelu", values, bias, exact)
    both(compiled, "bias_gelu_backward_", gradient, values, bias, exact)
    if dtype == torch.float32:
        large = torch.tensor([[-1e4, -100.0, -30.0, -9.0, 0.0, 9.0, 30.0, 100.0, 1e4]])
        output = compiled.bias_gelu(large, torch.zeros(9), exact)
        torch.testing.assert_close(
            output,
            large.clamp(min=0),
            rtol=1e-6,
            atol=1e-6,
        )


@pytest.mark.parametrize("num_fillers", [0, 29])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_cross_entropy(compiled, dtype, needs_gradient, num_fillers):
    logits, bias = randn(19, 1003, dtype=dtype) * 5, randn(1003 - num_fillers, seed=1)
    targets = torch.arange(19) * 50
    targets[[3, 18]] = -100
    arguments = (logits, bias, targets, 0.25, needs_gradient)
    losses, bias_gradient = both(compiled, "cross_entropy_", *arguments)
    assert losses[3] == losses[18] == 0 < losses[0]
    assert bias_gradient.any() == needs_gradient


def test_column_sums(compiled, dtype):
    both(compiled, "column_sum", randn(1201, 70, dtype=dtype))


def test_dropout_is_what_is_asked_for_and_a_function_of_its_key(compiled):
    ones = torch.ones(1_000_003)
    output = compiled.dropout(ones, SEED, 3, 0.1)
    assert torch.equal(output, plain.dropout(ones, SEED, 3, 0.1))
    assert set(output.unique().tolist()) == {0.0, torch.tensor(1 / 0.9).item()}
    # Five standard errors of the share, and no correlation of neighbours, of streams or of seeds.
    is_dropped = (output == 0).double()
    assert abs(is_dropped.mean() - 0.1) < 5 * (0.09 / len(ones)) ** 0.5
    keys = (
        (SEED, 4),
        (SEED + 1, 3),
        (SEED + 2**32, 3),
    )
    masks = [compiled.dropout(ones, *key, 0.1) for key in keys]
    masks += [output.roll(distance) for distance in (1, 2, 16, 128, 768)]
    for mask in masks:
        correlation = torch.corrcoef(torch.stack([is_dropped, (mask == 0).double()]))[0, 1]
        assert abs(correlation) < 5 / len(ones) ** 0.5


ones = torch.ones
PAIR, KEYS = torch.tensor([0, 2, 3]), torch.tensor([2, 1])  # two sequences, of 2 and of 1 rows
ROWS, OK, FEW = (
    ones(3, 4),
    ones(4),
    ones(
        3,
    ),
)
SCORES = ones(2, 1, 2, 2)
KEY = (0, 0, 0.0)
LABEL = torch.tensor([7])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        # Another type of numbers would be read as something else.
        ("column_sum", (ones(2, 2).double(),), "float32 or bfloat16 only"),
        ("softmax_dropout_", (SCORES, PAIR.float(), KEYS, 1.0, *KEY), "is expected, not"),
        ("cross_entropy_", (ones(1, 8), ones(8), LABEL.int(), 1.0, True), "is expected, not"),
        # Of sizes that do not belong together, memory beside the tensors would be read or written.
        ("column_sum", (ones(2, 3).t(),), "contiguous"),
        ("column_sum", (FEW,), "two dimensions"),
        ("cross_entropy_", (ones(1, 8), ones(7), LABEL, 1.0, True), "outside of the vocabulary"),
        ("cross_entropy_", (ROWS, OK, KEYS, 1.0, True), "targets of another size"),
        ("split_heads", (ones(3, 6), None, PAIR[:2], 1, 2, 1), "rows of another number"),
        ("split_heads", (ROWS, FEW, PAIR, 2, 2, 1), "bias of another size"),
        ("split_heads", (ROWS, None, PAIR, 3, 2, 1), "are no 1 parts of 3 heads"),
        ("split_heads", (ROWS, None, PAIR, 2, 1, 1), "2 rows in 1 positions"),
        ("split_heads", (ROWS, None, torch.tensor([0, 4, 3]), 2, 4, 1), "sequence of -1 rows"),
        ("split_heads", (ROWS, None, torch.tensor([1, 2, 3]), 2, 4, 1), "offsets begin at 1"),
        ("merge_heads_", (ROWS, ones(1, 3, 2, 2, 2), PAIR), "offsets of another size"),
        ("merge_heads_", (ROWS, ones(1, 2, 2, 2, 1), PAIR), "rows of another shape"),
        ("softmax_dropout_", (ones(2, 1, 2, 3), PAIR, KEYS, 1.0, *KEY), "scores of another shape"),
        ("softmax_dropout_", (SCORES, PAIR[:2], KEYS, 1.0, *KEY), "offsets of another size"),
        ("softmax_dropout_", (SCORES, PAIR, KEYS[:1], 1.0, *KEY), "keys of another size"),
        ("softmax_dropout_", (SCORES, PAIR, KEYS + 1, 1.0, *KEY), "3 keys in 2 positions"),
        (
            "softmax_dropout_backward_",
            (SCORES, ones(2, 1, 2, 1), PAIR, KEYS, 1.0, *KEY),
            "probabilities of another shape",
        ),
        ("dropout_add_norm", (ROWS, FEW, ROWS, OK, OK, 0.1, *KEY), "bias of another size"),
        ("dropout_add_norm", (ROWS, OK, ROWS[:2], OK, OK, 0.1, *KEY), "residual of another shape"),
        (
            "dropout_add_norm_backward",
            (ROWS, ROWS[:2], FEW, OK, *KEY),
            "normalized rows of another shape",
        ),
        ("dropout_add_norm_backward", (ROWS, ROWS, FEW[:2], OK, *KEY), "inverse of another size"),
        ("bias_gelu", (ROWS, FEW, True), "bias of another size"),
        ("bias_gelu_backward_", (ROWS[:2], ROWS, OK, True), "gradient of another shape"),
    ],
)
def test_tensors_that_the_kernels_cannot_take_are_refused(compiled, name, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        getattr(compiled, name)(*arguments)


@pytest.fixture
def forgotten_build():
    """Kernels are looked for anew, in the test and after it."""
    caches = (loading._compiled, loading._library)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


COMPILER_OUTPUT = (
    "Error building extension\n\n[1/4] c++ -O3\na.cpp:3:1: error: no such thing\nninja"
)


@pytest.mark.usefixtures("forgotten_build")
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", "RuntimeError"),
        (COMPILER_OUTPUT, "a.cpp:3:1: error: no such thing"),
        ("[Errno 30] Read-only file system", "[Errno 30] Read-only file system"),
    ],
)
def test_a_build_that_fails_is_one_line_and_stock_layers(monkeypatch, caplog, message, expected):
    def fails():
        raise RuntimeError(message)

    monkeypatch.setattr(loading, "why_not_compiled", lambda: None)
    monkeypatch.setattr(loading, "_build", fails)
    with caplog.at_level("WARNING"):
        assert load_kernels("auto", torch.device("cpu")) is None
    assert f"no compiled kernels ({expected}): stock layers" in caplog.text


@pytest.mark.usefixtures("forgotten_build")
def test_a_cache_folder_that_cannot_be_made_is_one_line_and_stock_layers(
    monkeypatch, tmp_path, caplog
):
    """As with a home folder that is missing; `auto` is the default of every Trainer."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "below"))
    with caplog.at_level("WARNING"):
        assert load_kernels("auto", torch.device("cpu")) is None
    assert "no compiled kernels (" in caplog.text
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        assert "Not a directory" in caplog.text


@pytest.mark.parametrize(
    ("tool", "advice"), [("c++", "install a C++ compiler"), ("ninja", "pip install ninja")]
)
def test_a_missing_tool_is_named(monkeypatch, tmp_path, tool, advice):
    def which(name):
        return None if name == tool else f"/bin/{name}"

    monkeypatch.setattr(loading, "_library", lambda: tmp_path / "none.so")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(loading.shutil, "which", which)
    reason = loading.why_not_compiled()
    if reason.startswith(("they are for Linux", "this CPU has no")):
        pytest.skip(reason)
    assert reason.startswith(f"{tool} not found")
    assert advice in reason


@pytest.mark.parametrize(
    ("package", "capability", "compiler", "reason"),
    [
        (None, (9, 0), "gcc", "the package triton is not installed"),
        ("triton", (6, 1), "gcc", "Triton needs a GPU of compute capability 7.0 or higher"),
        ("triton", (9, 0), None, "no C compiler found; install gcc"),
        ("triton", (9, 0), "without headers", "no Python.h in /nowhere; install python3-dev"),
        ("triton", (7, 0), "gcc", None),
        ("triton", (9, 0), "clang", None),
    ],
)
def test_where_triton_cannot_work_nothing_is_compiled_and_the_log_says_why(
    monkeypatch, caplog, tmp_path, package, capability, compiler, reason
):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: package)
    monkeypatch.setattr(loading.sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    tool = "gcc" if compiler == "without headers" else compiler
    monkeypatch.setattr(loading.shutil, "which", lambda name: name if name == tool else None)
    headers = "/nowhere" if compiler == "without headers" else tmp_path
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(loading.sysconfig, "get_path", lambda *names: str(headers))
    monkeypatch.delenv("CPATH", raising=False)
    monkeypatch.delenv("C_INCLUDE_PATH", raising=False)
    monkeypatch.delenv("CC", raising=False)
    loading._can_compile.cache_clear()
    with caplog.at_level("WARNING"):
        for name in ("auto", "compiled"):
            kernels = load_kernels(name, torch.device("cuda"))
            assert kernels.is_compiled == (reason is None)
    loading._can_compile.cache_clear()
    messages = [record.message for record in caplog.records]
    expected = [f"nothing is compiled for the GPU ({reason}), which is slower"]
    assert messages == ([] if reason is None else expected)


def test_off_and_other_devices_have_none():
    assert load_kernels("off", torch.device("cpu")) is None
    assert load_kernels("auto", torch.device("meta")) is None
    assert load_kernels("plain", torch.device("cpu")) is plain
