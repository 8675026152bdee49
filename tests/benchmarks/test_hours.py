"""Hours and price by arithmetic, and the table of docs/cloud.md."""

import json

import hours
import pytest


def test_the_hours_are_steps_times_batch_by_the_measured_rates(tmp_path):
    rates = {"base-128": 5000.0, "base-512": 1000.0}
    for phase in hours.PHASES:
        sides = {"ours": {"examples_per_second": rates[phase.case]}}
        file = tmp_path / phase.file
        file.write_text(json.dumps({"result": {phase.case: {"sides": sides}}}))
    expected = (900_000 * 256 / 5000 + 100_000 * 256 / 1000) / 3600
    assert hours.measured_hours(tmp_path) == pytest.approx(expected)


def test_a_card_with_half_the_peak_rate_takes_twice_as_long(monkeypatch):
    monkeypatch.setattr(hours, "GPUS", {"H200": hours.Gpu(800, 5.0), "half": hours.Gpu(400, 2.0)})
    measured, half = hours.make_table(10.0)[2:]
    assert measured == "| H200 | $5.00 | 10 hours | $50 | from measured steps |"
    assert half == "| half | $2.00 | 20 hours | $40 | estimated by the peak rates |"


def test_the_table_of_the_page_is_what_the_command_prints(repository):
    table = hours.make_table(hours.measured_hours(repository / hours.RESULTS_DIR))
    page = (repository / "docs" / "cloud.md").read_text(encoding="utf-8")
    assert "\n".join(table) in page
