"""Outputs of the recipes are those that were recorded in golden.json before the code was rebuilt:
to the bit, or elsewhere but for rounding.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import record


GOLDEN = json.loads(record.GOLDEN.read_text(encoding="utf-8"))
FAST = ("tokenizer", "batches")


# Of numbers on another processor, relative to the largest of their list: another order of sums, and
# bfloat16 that is emulated. Metrics of a few dozen examples change by whole examples.
TOLERANCE = 0.02
TOLERANCES = {
    "pretrain_off_fp32": 1e-3,
    "pretrain_plain_fp32": 1e-3,
    "pretrain_kernels_fp32": 1e-3,
    "phases": 1e-3,
}


def assert_alike(value: Any, expected: Any, tolerance: float, place: str) -> None:
    """Compare what was recorded but for hashes of floats: names, lengths, and numbers within a
    tolerance.
    """
    if isinstance(expected, dict):
        assert value.keys() == expected.keys(), place
        for name in expected:
            assert_alike(value[name], expected[name], tolerance, f"{place}: {name}")
    elif isinstance(expected, list):
        assert len(value) == len(expected), place
        if all(isinstance(item, float) for item in expected):
            scale = max(map(abs, expected), default=0.0)
            assert value == pytest.approx(expected, abs=tolerance * scale), place
            return
        for number, item in enumerate(expected):
            assert_alike(value[number], item, tolerance, f"{place}: {number}")
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, abs=tolerance * max(1.0, abs(expected))), place
    else:
        assert type(value) is type(expected), place
        assert isinstance(expected, str) or value == expected, place


def test_what_differs_by_more_than_rounding_is_not_alike():
    recorded = {"losses": [6.9, 5.0], "weights": "1f37401c", "rows": 20}
    rounded = {"losses": [6.9001, 4.9999], "weights": "another", "rows": 20}
    assert_alike(rounded, recorded, 1e-3, "a")
    for change in ({"losses": [6.9, 5.1]}, {"losses": [6.9]}, {"rows": 21}, {"weights": 3}):
        with pytest.raises(AssertionError):
            assert_alike(recorded | change, recorded, 1e-3, "a")


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    return record.Workspace(
        Path(os.environ.get("GOLDEN_WORKSPACE") or tmp_path_factory.mktemp("golden"))
    )


SECTIONS = []
for name in record.SECTIONS:
    SECTIONS.append(pytest.param(name, marks=() if name in FAST else pytest.mark.slow))


@pytest.mark.parametrize("section", SECTIONS)
def test_outputs_are_those_recorded(section, workspace):
    # As JSON has it: tuples are lists there.
    outputs = json.loads(json.dumps(record.SECTIONS[section](workspace)))
    expected = dict(GOLDEN[section])
    if section not in record.EXACT_EVERYWHERE and record.machine() != GOLDEN["machine"]:
        assert_alike(outputs, expected, TOLERANCES.get(section, TOLERANCE), section)
        return
    # scikit-learn and SciPy sum in another order than the functions before.
    assert outputs.pop("metrics", {}) == pytest.approx(expected.pop("metrics", {}), rel=1e-9)
    assert outputs == expected
