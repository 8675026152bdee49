"""Hours of a run over its resumes, and the energy and CO2 that are estimated from them."""

import json
import shutil
import time

import english_runs
import pytest

from bert_recipes.checkpointing import write_manifest
from bert_recipes.errors import InputError
from bert_recipes.run_folder import MANIFEST_FILE
from bert_recipes.training.cost import EnergySettings, RunTime, cost_facts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"carbon_intensity": 300}, "give --power_watts too"),
        ({"country_iso_code": "DEU"}, "give --power_watts too"),
        ({"power_watts": 5, "country_iso_code": "de"}, "three letters"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        EnergySettings(**settings).check()


@pytest.fixture
def run_for(monkeypatch):
    """Return a function that makes a run of some seconds, resumed from a state, and its state."""
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run_for_seconds(seconds, *states):
        run_time = RunTime()
        with run_time:
            clock[0] += 5
            for state in states:
                run_time.load_state_dict(state)
            clock[0] += seconds - 5
            state = json.loads(json.dumps(run_time.state_dict()))
        clock[0] += 50  # after training, or lost: the process was killed after the checkpoint
        assert run_time.state_dict() == state
        return run_time, state

    return run_for_seconds


def test_without_a_power_draw_there_are_hours_alone(run_for):
    run_time, _ = run_for(10)
    facts = {"train_seconds": 10.0, "train_seconds_is_whole": True}
    assert cost_facts(run_time, EnergySettings()) == facts


def test_energy_and_co2_are_of_all_hours_of_a_resumed_run(run_for):
    _, state = run_for(3600)
    run_time, _ = run_for(7200, state)
    assert cost_facts(run_time, EnergySettings(500, "DEU", 100)) == {
        "train_seconds": 10800.0,
        "train_seconds_is_whole": True,
        "energy": {
            "kwh": pytest.approx(1.5),
            "seconds": 10800.0,
            "co2_kg": pytest.approx(0.15),
            "estimated_by": "a given power draw of 500 W times the hours",
            "power_watts": 500,
            "country_iso_code": "DEU",
            "carbon_intensity": 100,
        },
    }
    assert "co2_kg" not in cost_facts(run_time, EnergySettings(500))["energy"]


def test_hours_from_a_checkpoint_without_them_are_not_whole(run_for):
    run_time, state = run_for(10, None)
    assert not cost_facts(run_time, EnergySettings())["train_seconds_is_whole"]
    run_time, _ = run_for(10, state)
    assert not run_time.is_whole


@pytest.mark.slow
def test_a_resumed_run_of_two_phases_has_the_hours_and_energy_of_all(tmp_path):
    (tmp_path / "english").mkdir()
    store = english_runs.make_store(tmp_path / "english")
    flags = ("--phase2_steps", 2, "--phase2_max_seq_length", 48)
    # One kilowatt-hour a second.
    flags += ("--power_watts", 3_600_000, "--carbon_intensity", 1000)
    start = time.perf_counter()
    run = english_runs.pretrain(
        store, tmp_path / "run", *flags, "--save_strategy", "steps", "--save_steps", 1
    )
    results = json.loads((run / "all_results.json").read_text())
    assert 0 < results["train_seconds"] < time.perf_counter() - start

    checkpoint = run / "checkpoint-1"  # in the first phase
    progress = json.loads((checkpoint / "progress.json").read_text())
    assert 0 < progress["cost"]["seconds"] < results["train_seconds"] + 0.06
    progress["cost"]["seconds"] = 3600.0
    (checkpoint / "progress.json").write_text(json.dumps(progress))
    (checkpoint / MANIFEST_FILE).unlink()
    write_manifest(checkpoint)
    # Only one checkpoint is kept: the one that the run is resumed from goes on the way.
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    shutil.copy(run / "run.yaml", resumed)
    shutil.copytree(checkpoint, resumed / checkpoint.name)
    flags += ("--save_strategy", "steps", "--save_steps", 1, "--save_total_limit", 1)
    english_runs.pretrain(store, resumed, *flags)
    assert not (resumed / checkpoint.name).exists()
    results = json.loads((resumed / "all_results.json").read_text())
    assert results["resumed_at_step"] == 1
    assert 3600 < results["train_seconds"] < 3660
    for name in ("kwh", "co2_kg", "seconds"):
        assert results["energy"][name] == pytest.approx(results["train_seconds"], abs=0.1)
