"""What a run costs, warnings about its loss, and its end at a signal."""

import json
import logging
import math
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_recipes.errors import InputError
from bert_recipes.training import emissions
from bert_recipes.training.callbacks import (
    CostMeter,
    StopOnSignal,
    cost_facts,
    describe_progress,
    describe_spike,
    ignore_signals,
)
from bert_recipes.training.emissions import EnergySettings


ENGLISH = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "english_runs.py"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (EnergySettings(power_watts=0), "power_watts is 0; allowed: above 0"),
        (EnergySettings(power_watts=float("nan")), "power_watts is nan"),
        (EnergySettings(power_watts=float("inf")), "power_watts is inf"),
        (EnergySettings(power_watts=5, carbon_intensity=-1), "carbon_intensity is -1; allowed: 0 or more"),
        (EnergySettings(carbon_intensity=300), "give --power_watts too"),
        (EnergySettings(power_watts=5, carbon_intensity=3, country_iso_code="de"), "three letters"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        settings.check()


def test_a_country_needs_the_extra(monkeypatch):
    monkeypatch.setattr(emissions, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"codecarbon is not installed; pip install 'bert-recipes\[emissions\]'"):
        EnergySettings(country_iso_code="DEU").check()
    # Where everything is given, the country is only named.
    EnergySettings(power_watts=100, carbon_intensity=300, country_iso_code="DEU").check()


def cost(process: int = 0, **settings: object) -> CostMeter:
    args = SimpleNamespace(
        energy=EnergySettings(**settings), process_index=process, local_process_index=0, world_size=1
    )
    return CostMeter(args)


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_nothing_given_is_nothing_but_hours(clock):
    run = cost()
    run.__enter__()
    clock[0] += 10
    run.__exit__()
    clock[0] += 50  # after training
    assert run.so_far() == {"seconds": 10.0, "is_whole": True}
    assert cost_facts(run.so_far(), EnergySettings()) == {"train_seconds": 10.0, "train_seconds_is_whole": True}


def test_parts_are_summed_each_with_its_own_power(clock):
    first = cost(power_watts=1000, carbon_intensity=500)
    first.__enter__()
    clock[0] += 3600
    checkpoint = json.loads(json.dumps(first.so_far()))
    clock[0] += 999  # lost: the process was killed after the checkpoint
    second = cost(power_watts=500, carbon_intensity=100)
    second.__enter__()
    clock[0] += 5
    second.resume(checkpoint)
    clock[0] += 7195
    second.__exit__()
    total = second.so_far()
    assert total["seconds"] == pytest.approx(3600 + 7200)
    assert total["energy_kwh"] == pytest.approx(1.0 + 1.0)
    assert total["co2_kg"] == pytest.approx(0.5 + 0.1)
    facts = cost_facts(total, EnergySettings(500, None, 100))
    assert facts["train_seconds"] == 10800
    assert facts["energy"] == {
        "kwh": pytest.approx(2.0),
        "seconds": 10800.0,
        "co2_kg": pytest.approx(0.6),
        "estimated_by": "a given power draw of 1000 W times the hours; a given power draw of 500 W times the hours",
        "power_watts": 500,
        "carbon_intensity": 100,
    }


def test_a_sum_of_which_a_part_is_not_known_says_so(clock):
    first = cost()
    first.__enter__()
    clock[0] += 100
    second = cost(power_watts=3600)
    second.__enter__()
    second.resume(first.so_far())
    clock[0] += 10
    second.__exit__()
    total = second.so_far()
    assert (total["seconds"], total["energy_seconds"], total["energy_kwh"]) == (110, 10, pytest.approx(0.01))
    assert "co2_kg" not in total
    third = cost(power_watts=3600, carbon_intensity=100)
    third.__enter__()
    third.resume(total)
    assert "co2_kg" not in third.so_far()  # the CO2 of the second part is not known
    fourth = cost()
    fourth.__enter__()
    fourth.resume(None)  # a checkpoint that says nothing
    assert fourth.so_far()["is_whole"] is False
    assert cost_facts(fourth.so_far(), EnergySettings())["train_seconds_is_whole"] is False


def test_only_the_main_process_counts_a_given_power(clock):
    other = cost(1, power_watts=100)
    other.__enter__()
    clock[0] += 10
    assert "energy_kwh" not in other.so_far()


# In a run


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ENGLISH["make_store"](tmp_path_factory.mktemp("english"))


def results_of(run: Path) -> dict:
    return json.loads((run / "all_results.json").read_text())


def test_a_resumed_run_has_the_hours_and_energy_of_all_its_parts(store, tmp_path, monkeypatch):
    power = ("--power_watts", 3_600_000, "--carbon_intensity", 1000)  # one kilowatt-hour a second
    first = ENGLISH["pretrain"](store, tmp_path / "first", "--save_strategy", "steps", "--save_steps", 2, *power)
    checkpoint = first / "checkpoint-2"
    said = json.loads((checkpoint / "progress.json").read_text())["cost"]
    assert 0 < said["seconds"] < results_of(first)["train_seconds"] + 0.06
    # As if the first part had taken an hour more.
    progress = json.loads((checkpoint / "progress.json").read_text())
    progress["cost"] = {"seconds": 3600.0, "is_whole": True, "energy_seconds": 3600.0, "energy_kwh": 3600.0}
    progress["cost"] |= {"methods": ["a given power draw of 3.6e+06 W times the hours"], "co2_kg": 3600.0}
    text = json.dumps(progress)
    (checkpoint / "progress.json").write_text(text)
    reseal(checkpoint)
    second = ENGLISH["pretrain"](store, tmp_path / "second", "--save_strategy", "no", "--resume", checkpoint, *power)
    results = results_of(second)
    assert results["resumed_at_step"] == 2
    assert 3600 < results["train_seconds"] < 3660
    assert results["energy"]["kwh"] == pytest.approx(results["train_seconds"], abs=0.1)
    assert results["energy"]["co2_kg"] == pytest.approx(results["train_seconds"], abs=0.1)
    assert results["energy"]["seconds"] == pytest.approx(results["train_seconds"], abs=0.1)


def reseal(checkpoint: Path) -> None:
    """Make the manifest say what is there now."""
    from bert_recipes.checkpointing import MANIFEST_FILE, seal

    (checkpoint / MANIFEST_FILE).unlink()
    seal(checkpoint)


def test_two_phases_are_one_sum(store, tmp_path):
    phases = ("--phase2_steps", 2, "--phase2_max_seq_length", 48, "--power_watts", 3_600_000)
    start = time.perf_counter()
    run = ENGLISH["pretrain"](store, tmp_path / "run", "--save_strategy", "no", *phases)
    results = results_of(run)
    assert 0 < results["train_seconds"] < time.perf_counter() - start
    card = (run / "README.md").read_text()
    assert "| tokens of a pair, at most, in the second phase | 48 |" in card
    assert "--max_seq_length 48" in card  # it was measured on the inputs of its last phase
    assert results["energy"]["kwh"] == pytest.approx(results["train_seconds"], abs=0.1)


def test_a_mistake_is_found_before_the_run(store, tmp_path):
    with pytest.raises(InputError, match="power_watts is -5"):
        ENGLISH["pretrain"](store, tmp_path / "run", "--power_watts", -5)
    assert not (tmp_path / "run").exists()


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
    assert energy["kwh"] > 0
    assert energy["co2_kg"] == pytest.approx(energy["kwh"] * intensity / 1000)
    assert energy["carbon_intensity"] == intensity
    assert energy["country_iso_code"] == "DEU"
    assert energy["estimated_by"].startswith(
        f"codecarbon {codecarbon.__version__}, tracking mode machine; on average "
    )
    # Not more than any machine draws, nor less than one core.
    watts = energy["kwh"] * 1000 * 3600 / energy["seconds"]
    assert 1 < watts < 20_000
    assert not no_network
    assert {path.name for path in tmp_path.iterdir()} - {".run.lock"} == {"run"}
    text = (run / "README.md").read_text()
    assert "geographical_location: DEU" in text
    assert energy["estimated_by"] in text


def test_a_users_own_configuration_of_codecarbon_sends_nothing(codecarbon, tmp_path, no_network, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".codecarbon.config").write_text(
        "[codecarbon]\nsave_to_api = true\noutput_methods = api,csv\nemissions_endpoint = http://127.0.0.1:9\n"
        "electricitymaps_api_token = x\nco2_signal_api_token = y\nallow_multiple_runs = false\n"
    )
    meter = cost(country_iso_code="FRA")
    with meter:
        time.sleep(0.2)
        assert meter.so_far()["energy_kwh"] > 0
    assert not no_network
    assert [path.name for path in tmp_path.iterdir()] == [".codecarbon.config"]


def test_an_unknown_country_is_refused(codecarbon):
    with pytest.raises(InputError, match=r"country_iso_code is 'deu'; did you mean DEU\?"):
        EnergySettings(country_iso_code="deu").check()
    with pytest.raises(InputError, match="three letters of ISO 3166-1"):
        EnergySettings(country_iso_code="Germany").check()


def test_codecarbon_that_fails_ends_no_run(codecarbon, store, tmp_path, monkeypatch, caplog):
    def broken(self: object, *args: object, **kwargs: object) -> None:
        raise RuntimeError("no counters here")

    monkeypatch.setattr(codecarbon.emissions_tracker.BaseEmissionsTracker, "_ensure_hardware_ready", broken)
    with caplog.at_level(logging.WARNING):
        run = ENGLISH["pretrain"](
            store, tmp_path / "run", "--country_iso_code", "DEU", "--save_strategy", "steps", "--save_steps", 2
        )
    results = results_of(run)
    assert results["train_steps"] == 4
    assert "energy" not in results
    assert "could not measure the energy" in caplog.text
    assert "kWh" not in (run / "README.md").read_text()


STUCK = {"eval_mlm_loss": 6.72, "eval_unigram_loss": 6.76}


def test_a_loss_at_the_unigram_level_is_said_in_words_with_advice():
    message = describe_progress(STUCK, step=5000, max_steps=10_000, warmup_steps=1000)
    assert "at step 5000" in message
    assert "6.72" in message
    assert "6.76" in message
    assert "learning rate" in message


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (9.76, "the model is worse than that"),  # far above
        (6.87, "the model is worse than that"),  # just above the margin
        (6.85, "nothing shows that the model has learned more than the frequencies"),
        (6.67, "nothing shows that the model has learned more than the frequencies"),
        (6.65, None),
        (2.0, None),
        (math.nan, "is not finite: training has diverged"),
        (math.inf, "is not finite: training has diverged"),
    ],
)
def test_what_is_said_fits_the_side_of_the_yardstick(loss, said):
    metrics = {"eval_mlm_loss": loss, "eval_unigram_loss": 6.76}
    message = describe_progress(metrics, step=5000, max_steps=10_000, warmup_steps=1000)
    assert (message is None) is (said is None)
    assert said is None or said in message
    assert message is None or "has learned the frequencies" not in message


@pytest.mark.parametrize(
    ("metrics", "step"),
    [
        ({"eval_mlm_loss": 6.5, "eval_unigram_loss": 6.76}, 5000),  # it learns
        (STUCK, 1500),  # too early to tell
        ({"eval_mlm_loss": 6.72}, 5000),  # no yardstick
    ],
)
def test_otherwise_nothing_is_said(metrics, step):
    assert describe_progress(metrics, step=step, max_steps=10_000, warmup_steps=1000) is None


FLAT = [3.0 + 0.01 * (-1) ** number for number in range(60)]


def test_a_loss_that_jumps_is_said_in_words_with_advice():
    message = describe_spike([*FLAT, 4.0], step=700)
    assert "at step 700 the training loss is 4.00" in message
    assert "3.00 on average" in message
    assert "learning rate" in message


@pytest.mark.parametrize(
    "losses",
    [
        FLAT,  # as before
        [*FLAT, 3.3],  # far in deviations, but small
        [number % 3 + 3.0 for number in range(60)],  # it always jumps
        [3.0, 9.0],  # too early to tell
        [9.0 - 0.1 * number for number in range(60)],  # it falls
        [*FLAT, float("nan")],  # said elsewhere
    ],
)
def test_otherwise_no_spike_is_seen(losses):
    assert describe_spike(losses, step=1) is None


def test_losses_that_are_not_finite_are_no_reason_to_stop():
    """A step whose gradient is not finite is left out, its loss stands in the log."""
    assert describe_spike([5.0] * 12 + [math.nan, math.inf, 5.1], 15) is None
    assert "at step 15" in describe_spike([5.0] * 12 + [math.nan, 9.0], 15)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_the_handlers_are_put_back(number, capfd):
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    request = StopOnSignal()
    with request.listening():
        assert request.signal is None
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        assert request.signal == number
        os.kill(os.getpid(), signal.SIGTERM)  # launchers send it more than once
        time.sleep(0.01)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.Signals(number).name in capfd.readouterr().err


def test_a_second_interrupt_leaves_at_once():
    code = "import time\nfrom bert_recipes.training.callbacks import StopOnSignal\nwith StopOnSignal().listening():\n"
    code += "    print('ready', flush=True)\n    time.sleep(60)\n    time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"stopping in good order" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_in_a_thread_nothing_is_handled():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def look():
        with StopOnSignal().listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_processes_that_load_data_leave_signals_to_the_one_that_trains():
    code = "import os, signal\nfrom bert_recipes.training.callbacks import ignore_signals\nignore_signals(3)\n"
    code += "os.kill(os.getpid(), signal.SIGINT)\nos.kill(os.getpid(), signal.SIGTERM)\nprint('here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "here\n"
    assert ignore_signals.__doc__
