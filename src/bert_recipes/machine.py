"""The machine and the versions a result was measured on and with."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from typing import Any

import torch
import transformers


logger = logging.getLogger(__name__)

# Instructions that decide how fast matrix products are, by their names in /proc/cpuinfo (x86, then ARM).
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16", "i8mm")

# Line of /proc/cpuinfo -> what it is called in a results file.
_NUMBERS = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}


def describe_machine() -> dict[str, Any]:
    """Machine and versions, for results files.

    `processor` is the name the system gives; virtual machines often hide all but the maker, so `processor_model` (family and
    model, or part, as the processor numbers itself) and `instructions` tell those of one name apart. Both are left out where
    the system does not say.
    """
    facts = _cpu_facts()
    numbers = [f"{shown} {facts[key]}" for key, shown in _NUMBERS.items() if key in facts]
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    known = {"processor_model": ", ".join(numbers), "instructions": [name for name in _INSTRUCTIONS if name in flags]}
    return {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        **{key: value for key, value in known.items() if value},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _cpu_facts(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The lines of the first processor; empty where the system has no such file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        logger.debug("no %s: the processor's name is %s", path, platform.processor())
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
