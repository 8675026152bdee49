"""Choose and compile the fastest layers for a device."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from bert_recipes.models.compiled_layers import CompiledLayers
from bert_recipes.models.kernels import plain
from bert_recipes.models.kernels.plain import Kernels


logger = logging.getLogger(__name__)

FAST_LAYERS = ("auto", "compiled", "eager", "plain", "off")
SOURCES = sorted(Path(__file__).with_name("cpu").glob("*.cpp"))
HEADER = Path(__file__).with_name("cpu") / "common.h"
# Rows of the sum that a compiled library must get right before it is used.
CHECKED_ROWS = 65_536
# The least compute capability for which Triton makes kernels.
TRITON_CAPABILITY = (7, 0)
# Flags of the compiler.
FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
)


def load_kernels(name: str, device: torch.device) -> Kernels | CompiledLayers | None:
    """Return what computes layers on packed rows; compile it where needed.

    Args:
        name: "auto": the kernels for a CPU where they can be compiled, otherwise None;
            `CompiledLayers` on a GPU. "compiled": `CompiledLayers`. "eager": the same operations
            one by one, as on a GPU for which torch.compile cannot work. "plain": the operations of
            the CPU's kernels in torch (slow, for comparison), as "eager" on a GPU. "off": None.
        device: The device of the model.

    Returns:
        A module with the functions of `kernels.plain`, `CompiledLayers`, or None: stock layers are
        then the best choice.
    """
    if name == "off":
        return None
    if device.type == "cuda":
        return CompiledLayers(is_compiled=name in ("auto", "compiled") and _can_compile(device))
    if name in ("compiled", "eager"):
        return CompiledLayers(is_compiled=name == "compiled")
    if name == "plain":
        return plain
    return _compiled() if device.type == "cpu" else None


@functools.cache
def _can_compile(device: torch.device) -> bool:
    """Return whether torch.compile can work for a GPU; a log line says why it cannot."""
    reason = why_not_triton(device)
    if reason is not None:
        logger.warning("nothing is compiled for the GPU (%s), which is slower", reason)
    return reason is None


def why_not_triton(device: torch.device) -> str | None:
    """Return why Triton, with which torch.compile makes a GPU's kernels, cannot; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if torch.cuda.get_device_capability(device) < TRITON_CAPABILITY:
        return "Triton needs a GPU of compute capability 7.0 or higher"
    if "CC" not in os.environ and not any(map(shutil.which, ("gcc", "clang"))):
        return "no C compiler found; install gcc"
    # Source: Triton, runtime/build.py.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = Path(sysconfig.get_path("include", scheme))
    has_include_path = any(name in os.environ for name in ("CPATH", "C_INCLUDE_PATH"))
    if not has_include_path and not (headers / "Python.h").is_file():
        return f"no Python.h in {headers}; install python3-dev"
    return None


@functools.cache
def _compiled() -> Kernels | None:
    """Return the compiled module; None, with a log line, where it cannot be built."""
    try:
        reason = why_not_compiled()
        if reason is None:
            return _build()
    # Errors of torch's builder, a compiler, a linker or a file system.
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = _gist(error)
    logger.warning("no compiled kernels (%s): stock layers are used, which are slower", reason)
    return None


def why_not_compiled() -> str | None:
    """Return why the kernels cannot be compiled for this machine; None if they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "this CPU has no AVX2"
    if _library().is_file():
        return None
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"{compiler} not found; install a C++ compiler"
    with _tools_on_path():
        return None if shutil.which("ninja") else "ninja not found; pip install ninja"


@contextlib.contextmanager
def _tools_on_path() -> Iterator[None]:
    """Put what pip has installed beside the interpreter on the path.

    Its environment may not be activated.
    """
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path


def _gist(error: Exception) -> str:
    """Return one line: the compiler's first error, or what the exception says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "error:" in line:
            return line
    return lines[0] if lines else type(error).__name__


def _build() -> Kernels:
    """Return the compiled operations, after a check; compile them where that is not done."""
    library = _library()
    if not library.is_file():
        _compile(library)
    torch.ops.load_library(str(library))
    # A library that was compiled elsewhere, or against another OpenMP, shows itself here and not in
    # somebody's weights. So many rows are shared by the threads, and the numbers are small enough
    # for every order of adding to be exact.
    values = (torch.arange(CHECKED_ROWS * 8) % 13).float().view(CHECKED_ROWS, 8)
    if not torch.equal(torch.ops.bert_recipes.column_sum(values), plain.column_sum(values)):
        raise RuntimeError(f"{library} computes wrong sums; delete it")
    return torch.ops.bert_recipes


@functools.cache
def _library() -> Path:
    """Return the path where the library is or will be.

    A home folder may be shared between machines: the name tells what it is compiled for.
    """
    from torch.utils import cpp_extension  # takes time, and is needed here only

    identity = [file.read_text(encoding="utf-8") for file in (HEADER, *SOURCES)]
    identity += [*FLAGS, torch.__version__, platform.python_version(), _processor()]
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()
    folder = cpp_extension._get_build_directory("bert_recipes", verbose=False)
    return Path(folder) / f"bert_recipes_cpu_{digest[:12]}.so"


def _compile(library: Path) -> None:
    """Compile the sources into a library, unless another process has done it."""
    import fcntl  # Linux only

    from torch.utils import cpp_extension

    # The system gives this lock back however a process ends; torch's own lock file stays behind a
    # killed one.
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.is_file():
            return
        logger.info(
            "compiling kernels for this CPU (once, some twenty seconds): %s", library.parent
        )
        with tempfile.TemporaryDirectory(dir=library.parent) as folder, _tools_on_path():
            cpp_extension.load(
                library.stem,
                [str(file) for file in SOURCES],
                extra_cflags=list(FLAGS),
                build_directory=folder,
                is_python_module=False,
            )
            os.replace(Path(folder) / library.name, library)


def _processor() -> str:
    """Return name and abilities of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    identity = {line for line in lines if line.startswith(("model name", "flags"))}
    return "\n".join(sorted(identity))
