"""What a run costs: hours, energy, CO2, over all its parts."""

import json
import logging
import runpy
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_recipes.checkpointing import MANIFEST_FILE, write_manifest
from bert_recipes.errors import InputError
from bert_recipes.training import emissions
from bert_recipes.training.emissions import CostMeter, EnergySettings, cost_facts


ENGLISH = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "english_runs.py"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (EnergySettings(power_watts=0), "power_watts is 0; allowed: above 0"),
        (EnergySettings(power_watts=float("nan")), "power_watts is nan"),
        (EnergySettings(power_watts=float("inf")), "power_watts is inf"),
        (
            EnergySettings(power_watts=5, carbon_intensity=-1),
            "carbon_intensity is -1; allowed: 0 or more",
        ),
        (EnergySettings(carbon_intensity=300), "give --power_watts too"),
        (EnergySettings(power_watts=5, carbon_intensity=3, country_iso_code="de"), "three letters"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        settings.check()


def test_a_country_needs_the_extra(monkeypatch):
    monkeypatch.setattr(emissions, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"codecarbon is not installed; pip install 'bert-recipes\[emissions\]'"
    ):
        EnergySettings(country_iso_code="DEU").check()
    # Where everything is given, the country is only named.
    EnergySettings(power_watts=100, carbon_intensity=300, country_iso_code="DEU").check()


def meter(process: int = 0, **settings: object) -> CostMeter:
    args = {
        "energy": EnergySettings(**settings),
        "process_index": process,
        "local_process_index": 0,
        "world_size": 1,
    }
    return CostMeter(SimpleNamespace(**args))


@pytest.fixture
def measure(monkeypatch):
    """Let a part of a run take seconds: what its checkpoint says of them, after the parts before
    it.
    """
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def measure_it(seconds: float, *before: object, process: int = 0, **settings: object) -> dict:
        part = meter(process, **settings)
        with part:
            now[0] += 5
            if before:
                part.resume(*before)
            now[0] += seconds - 5
            inside = part.so_far()
        now[0] += 50  # after training, or lost: the process was killed after the checkpoint
        assert part.so_far() == inside
        return json.loads(json.dumps(inside))

    return measure_it


def test_nothing_given_is_nothing_but_hours(measure):
    assert measure(10) == {"seconds": 10.0, "is_whole": True}
    assert cost_facts(measure(10), EnergySettings()) == {
        "train_seconds": 10.0,
        "train_seconds_is_whole": True,
    }
    assert measure(10, process=1, power_watts=100) == {
        "seconds": 10.0,
        "is_whole": True,
    }  # the main process counts it


def test_parts_are_summed_each_with_its_own_power(measure):
    first = measure(3600, power_watts=1000, carbon_intensity=500)
    total = measure(7200, first, power_watts=500, carbon_intensity=100)
    facts = cost_facts(total, EnergySettings(500, None, 100))
    assert facts["train_seconds"] == 10800
    assert facts["energy"] == {
        "kwh": pytest.approx(1.0 + 1.0),
        "seconds": 10800.0,
        "co2_kg": pytest.approx(0.5 + 0.1),
        "estimated_by": "a given power draw of 1000 W times the hours; a given power draw of 500 "
        "W times the hours",
        "power_watts": 500,
        "carbon_intensity": 100,
    }


def test_a_sum_of_which_a_part_is_not_known_says_so(measure):
    second = measure(10, measure(100), power_watts=3600)
    assert (second["seconds"], second["energy_seconds"], second["energy_kwh"]) == (
        110,
        10,
        pytest.approx(0.01),
    )
    assert "co2_kg" not in second
    # The CO2 of the second part is not known.
    assert "co2_kg" not in measure(10, second, power_watts=3600, carbon_intensity=100)
    of_old_checkpoint = measure(10, None)
    assert cost_facts(of_old_checkpoint, EnergySettings())["train_seconds_is_whole"] is False


# In a run


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ENGLISH["make_store"](tmp_path_factory.mktemp("english"))


def results_of(run: Path) -> dict:
    return json.loads((run / "all_results.json").read_text())


def test_a_resumed_run_has_the_hours_and_energy_of_all_its_parts(store, tmp_path):
    power = ("--power_watts", 3_600_000, "--carbon_intensity", 1000)  # one kilowatt-hour a second
    first = ENGLISH["pretrain"](
        store, tmp_path / "first", "--save_strategy", "steps", "--save_steps", 2, *power
    )
    checkpoint = first / "checkpoint-2"
    progress = json.loads((checkpoint / "progress.json").read_text())
    assert 0 < progress["cost"]["seconds"] < results_of(first)["train_seconds"] + 0.06
    # As if the first part had taken an hour more.
    progress["cost"] = {
        "seconds": 3600.0,
        "is_whole": True,
        "energy_seconds": 3600.0,
        "energy_kwh": 3600.0,
    }
    progress["cost"] |= {
        "methods": ["a given power draw of 3.6e+06 W times the hours"],
        "co2_kg": 3600.0,
    }
    (checkpoint / "progress.json").write_text(json.dumps(progress))
    (checkpoint / MANIFEST_FILE).unlink()
    write_manifest(checkpoint)
    second = ENGLISH["pretrain"](
        store, tmp_path / "second", "--save_strategy", "no", "--resume", checkpoint, *power
    )
    results = results_of(second)
    assert results["resumed_at_step"] == 2
    assert 3600 < results["train_seconds"] < 3660
    for name in ("kwh", "co2_kg", "seconds"):
        assert results["energy"][name] == pytest.approx(results["train_seconds"], abs=0.1)


def test_two_phases_are_one_sum(store, tmp_path):
    phases = ("--phase2_steps", 2, "--phase2_max_seq_length", 48, "--power_watts", 3_600_000)
    start = time.perf_counter()
    run = ENGLISH["pretrain"](store, tmp_path / "run", "--save_strategy", "no", *phases)
    results = results_of(run)
    assert 0 < results["train_seconds"] < time.perf_counter() - start
    assert results["energy"]["kwh"] == pytest.approx(results["train_seconds"], abs=0.1)


# codecarbon


@pytest.fixture
def no_network(monkeypatch):
    """Every connection fails, and is told of."""
    tried = []

    def refuse(self: socket.socket, address: object) -> None:
        tried.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    return tried


@pytest.fixture
def codecarbon():
    return pytest.importorskip("codecarbon", reason="the extra emissions is not installed")


def test_codecarbon_measures_a_run_without_network_and_without_files(
    codecarbon, store, tmp_path, no_network, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run = ENGLISH["pretrain"](store, tmp_path / "run", "--country_iso_code", "DEU")
    energy = results_of(run)["energy"]
    intensity = emissions.intensity_of_country("DEU")
    assert energy["co2_kg"] == pytest.approx(energy["kwh"] * intensity / 1000)
    assert (energy["carbon_intensity"], energy["country_iso_code"]) == (intensity, "DEU")
    method = f"codecarbon {codecarbon.__version__}, tracking mode machine; on average "
    assert energy["estimated_by"].startswith(method)
    # Not more than any machine draws, nor less than one core.
    watts = energy["kwh"] * 1000 * 3600 / energy["seconds"]
    assert 1 < watts < 20_000
    assert not no_network
    assert {path.name for path in tmp_path.iterdir()} - {".run.lock"} == {"run"}
    assert energy["estimated_by"] in (run / "README.md").read_text()


def test_a_users_own_configuration_of_codecarbon_sends_nothing(
    codecarbon, tmp_path, no_network, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".codecarbon.config").write_text(
        "[codecarbon]\nsave_to_api = true\noutput_methods = api,csv\nemissions_endpoint = "
        "http://127.0.0.1:9\n"
        "electricitymaps_api_token = x\nco2_signal_api_token = y\nallow_multiple_runs = false\n"
    )
    part = meter(country_iso_code="FRA")
    with part:
        time.sleep(0.2)
        assert part.so_far()["energy_kwh"] > 0
    assert not no_network
    assert [path.name for path in tmp_path.iterdir()] == [".codecarbon.config"]


def test_an_unknown_country_is_refused(codecarbon):
    for code, words in (
        ("deu", r"country_iso_code is 'deu'; did you mean DEU\?"),
        ("Germany", "three letters of ISO 3166-1"),
    ):
        with pytest.raises(InputError, match=words):
            EnergySettings(country_iso_code=code).check()


def test_codecarbon_that_fails_ends_no_run(codecarbon, store, tmp_path, monkeypatch, caplog):
    def broken(self: object, *args: object, **kwargs: object) -> None:
        raise RuntimeError("no counters here")

    monkeypatch.setattr(
        codecarbon.emissions_tracker.BaseEmissionsTracker, "_ensure_hardware_ready", broken
    )
    with caplog.at_level(logging.WARNING):
        run = ENGLISH["pretrain"](
            store,
            tmp_path / "run",
            "--country_iso_code",
            "DEU",
            "--save_strategy",
            "steps",
            "--save_steps",
            2,
        )
    results = results_of(run)
    assert results["train_steps"] == 4
    assert "energy" not in results
    assert "could not measure the energy" in caplog.text
