import pytest
import torch

from bert_recipes import precision
from bert_recipes.errors import InputError
from bert_recipes.precision import choose_precision


@pytest.mark.parametrize(("amx", "avx"), [(True, True), (False, True), (True, False)])
def test_a_cpu_with_bfloat16_units_uses_them(monkeypatch, amx, avx):
    monkeypatch.setattr(precision, "cpu_bf16_units", lambda: {"AMX": amx, "AVX512_BF16": avx})
    chosen = choose_precision("auto", use_cpu=True)
    assert chosen.name == "bf16"
    assert ("AMX" in chosen.reason) == amx


def test_a_cpu_without_stays_with_fp32_unless_told(monkeypatch):
    monkeypatch.setattr(precision, "cpu_bf16_units", lambda: {"AMX": False, "AVX512_BF16": False})
    assert choose_precision("auto", use_cpu=True).name == "fp32"
    assert choose_precision("bf16", use_cpu=True).name == "bf16"


def test_impossible_precisions_are_refused(monkeypatch):
    with pytest.raises(InputError, match="no fast fp16"):
        choose_precision("fp16", use_cpu=True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(InputError, match="no bfloat16 units"):
        choose_precision("bf16", use_cpu=False)
    assert choose_precision("auto", use_cpu=False).name == "fp16"
