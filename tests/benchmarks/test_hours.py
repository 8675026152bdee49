"""Hours and price by arithmetic, and the table of docs/cloud.md."""

import json

import hours
import pytest

from bert_recipes.errors import InputError


def write_results(folder, rates, batch):
    """Write a file for each case; their paths by case."""
    files = {}
    for case, rate in rates.items():
        ours = {"examples_per_second": rate, "step_sequences": [batch, batch]}
        files[case] = folder / f"{case}.json"
        files[case].write_text(json.dumps({"result": {case: {"sides": {"ours": ours}}}}))
    return files


def test_the_hours_are_steps_times_batch_by_the_measured_rates(tmp_path):
    files = write_results(tmp_path, {"base-128": 5000.0, "base-512": 1000.0}, 256)
    expected = (900_000 * 256 / 5000 + 100_000 * 256 / 1000) / 3600
    assert hours.measured_hours(files) == pytest.approx(expected)


def test_steps_of_another_batch_are_refused(tmp_path):
    files = write_results(tmp_path, {"base-128": 5000.0, "base-512": 1000.0}, 1024)
    with pytest.raises(InputError, match="steps of 1024 inputs; the paper's have 256"):
        hours.measured_hours(files)


def test_a_card_with_half_the_peak_rate_takes_twice_as_long(monkeypatch):
    monkeypatch.setattr(hours, "GPUS", {"H200": hours.Gpu(800, 5.0), "half": hours.Gpu(400, 2.0)})
    measured, half = hours.make_table(10.0)[2:]
    assert measured == "| H200 | $5.00 | 10 hours | $50 | from measured steps |"
    assert half == "| half | $2.00 | 20 hours | $40 | estimated by the peak rates |"


def test_the_table_of_the_page_is_what_the_command_prints(repository):
    args = hours.HoursArguments()
    files = {"base-128": repository / args.base_128, "base-512": repository / args.base_512}
    table = hours.make_table(hours.measured_hours(files))
    page = (repository / "docs" / "cloud.md").read_text(encoding="utf-8")
    assert "\n".join(table) in page
