"""Which arithmetic suits the hardware at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bert_recipes.errors import InputError


PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Precision:
    """A choice and why it was made.

    Attributes:
        name: "fp32", "bf16" or "fp16".
        reason: For the log.
    """

    name: str
    reason: str


def choose_precision(wanted: str, *, use_cpu: bool) -> Precision:
    """Resolve "auto" from what the device can do; the same machine always gives the same answer.

    Weights, optimiser state and losses stay in float32; the choice is about matrix products under autocast.

    Args:
        wanted: One of `PRECISIONS`.
        use_cpu: The run uses the CPU.

    Raises:
        InputError: fp16 on a CPU, or bf16 on a GPU without it.
    """
    if wanted == "fp32":
        return Precision("fp32", "as asked")
    if use_cpu:
        if wanted == "fp16":
            raise InputError("precision is 'fp16'; a CPU has no fast fp16 products: use bf16, fp32 or auto")
        if wanted == "bf16":
            return Precision("bf16", "as asked")
        units = [name for name, present in cpu_bf16_units().items() if present]
        if units:
            return Precision("bf16", f"this CPU multiplies bfloat16 in hardware ({', '.join(units)})")
        return Precision("fp32", "this CPU has neither AMX nor AVX512_BF16")
    if wanted == "fp16":
        return Precision("fp16", "as asked")
    # including_emulation=False: older GPUs emulate bfloat16, slower than float32.
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    if wanted == "bf16" and not native:
        raise InputError(
            "precision is 'bf16'; this GPU has no bfloat16 units (compute capability below 8.0): use fp16"
        )
    if wanted == "bf16":
        return Precision("bf16", "as asked")
    return (
        Precision("bf16", "this GPU has bfloat16 units") if native else Precision("fp16", "this GPU is older than 8.0")
    )


def cpu_bf16_units() -> dict[str, bool]:
    """Which instruction sets for bfloat16 products this CPU has, by name."""
    return {
        "AMX": bool(torch.cpu._is_amx_tile_supported()),
        "AVX512_BF16": bool(torch.cpu._is_avx512_bf16_supported()),
    }
