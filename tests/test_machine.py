"""Machines that bear one name are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_recipes import machine
from bert_recipes.machine import describe_machine


X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx2 avx512f avx512_bf16

processor\t: 1
cpu family\t: 26
model name\t: another
"""
ARM = """processor\t: 0
Features\t: fp asimd sve bf16
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


@pytest.mark.parametrize(
    ("text", "model", "instructions"),
    [
        (X86, "family 25, model 17", ["avx2", "avx512f", "avx512_bf16"]),
        (ARM, "implementer 0x41, part 0xd4f", ["asimd", "sve", "bf16"]),
    ],
)
def test_the_first_processor_is_described(tmp_path: Path, monkeypatch, text: str, model: str, instructions: list[str]):
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    facts = machine._cpu_facts(tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_cpu_facts", lambda: facts)
    described = describe_machine()
    assert (described["processor_model"], described["instructions"]) == (model, instructions)
    assert described["processor"]
    assert described["threads"] > 0


def test_what_the_system_does_not_say_is_left_out(tmp_path: Path, monkeypatch):
    facts = machine._cpu_facts(tmp_path / "missing")
    assert facts == {}
    monkeypatch.setattr(machine, "_cpu_facts", lambda: facts)
    assert not {"processor_model", "instructions"} & describe_machine().keys()
