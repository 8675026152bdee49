"""Outputs of the recipes are those that were recorded in golden.json before the code was rebuilt, to the bit."""

import json
import os
from pathlib import Path

import pytest
import record


GOLDEN = json.loads(record.GOLDEN.read_text(encoding="utf-8"))
FAST = ("tokenizer", "batches")


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> record.Workspace:
    return record.Workspace(Path(os.environ.get("GOLDEN_WORKSPACE") or tmp_path_factory.mktemp("golden")))


@pytest.mark.parametrize(
    "section", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in record.SECTIONS]
)
def test_outputs_are_those_recorded(section, workspace):
    if section not in record.EXACT_EVERYWHERE and record.machine() != GOLDEN["machine"]:
        pytest.skip("floats are the same to the bit only on the processor and with the versions of the record")
    # As JSON has it: tuples are lists there.
    found, expected = json.loads(json.dumps(record.SECTIONS[section](workspace))), dict(GOLDEN[section])
    # scikit-learn and SciPy sum in another order than the functions before.
    assert found.pop("metrics", {}) == pytest.approx(expected.pop("metrics", {}), rel=1e-9)
    assert found == expected
