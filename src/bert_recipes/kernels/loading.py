"""Which implementation of the kernels a machine can have."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bert_recipes.kernels import plain


logger = logging.getLogger(__name__)

# A module with the functions of plain.py: it is their description.
Kernels = Any

FAST_LAYERS = ("auto", "plain", "off")
SOURCES = sorted(Path(__file__).with_name("cpu").glob("*.cpp"))
HEADER = Path(__file__).with_name("cpu") / "common.h"
FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")


def load_kernels(name: str, device: torch.device) -> Kernels | None:
    """Open, and where needed compile, the kernels.

    Args:
        name: "auto": compiled where that is possible, otherwise None; "plain": torch operations (slow, for comparison);
            "off": None.
        device: Of the model.

    Returns:
        A module with the functions of `bert_recipes.kernels.plain`, or None: stock layers are then the best choice.
    """
    if name == "plain":
        return plain
    if name == "off" or device.type != "cpu":
        return None
    return _compiled()


@functools.cache
def _compiled() -> Kernels | None:
    """The compiled module; None, with a log line, where it cannot be built."""
    reason = _why_not()
    if reason is None:
        try:
            return _build()
        except Exception as error:  # whatever a compiler or linker may say; the first line is enough
            reason = str(error).strip().splitlines()[0]
    logger.warning("no compiled kernels (%s): stock layers are used, which are slower", reason)
    return None


def _why_not() -> str | None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "this CPU has no AVX2"
    missing = [tool for tool in ("c++", "ninja") if shutil.which(tool) is None and not _in_environment(tool)]
    return f"{' and '.join(missing)} not found; install a C++ compiler" if missing else None


def _in_environment(tool: str) -> bool:
    return (Path(sys.executable).parent / tool).is_file()


def _build() -> Kernels:
    import fcntl  # Linux only

    from torch.utils import cpp_extension  # takes time, and is needed here only

    # A home folder may be shared between machines: the name says what the code was compiled for.
    identity = [file.read_text(encoding="utf-8") for file in (HEADER, *SOURCES)]
    identity += [*FLAGS, torch.__version__, platform.python_version(), _processor()]
    name = f"bert_recipes_cpu_{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:12]}"
    folder = Path(cpp_extension._get_build_directory("bert_recipes", verbose=False))
    library = folder / f"{name}.so"
    # The system gives this lock back however a process ends; torch's own lock file stays behind a killed one.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            logger.info("compiling kernels for this CPU (once, some ten seconds): %s", folder)
            with tempfile.TemporaryDirectory(dir=folder) as place:
                cpp_extension.load(
                    name,
                    [str(file) for file in SOURCES],
                    extra_cflags=[*FLAGS],
                    build_directory=place,
                    is_python_module=False,
                )
                os.replace(Path(place) / library.name, library)
            return torch.ops.bert_recipes
    torch.ops.load_library(str(library))
    return torch.ops.bert_recipes


def _processor() -> str:
    """Name and abilities of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
