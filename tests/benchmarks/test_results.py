"""The results file and what is read off it."""

import json
import multiprocessing
import os

import pytest
from speed.report import last_runs, make_rows, ratio_of, write_report
from speed.report_plot import speed_multiple
from speed.results import ResultsFile, machine_name, read_folder, same_machine

from bert_recipes.errors import InputError


MACHINE = {"processor": "AMD EPYC", "gpu": None, "cores": 2, "threads": 2, "torch": "2", "transformers": "5"}


def sample(side: str, round_number: int, rate: float, *, run: str = "a", memory: float = 100.0) -> dict:
    result = {"tokens_per_second": rate, "peak_memory_mb": memory, "gflops_per_second": rate, "precision": "bf16"}
    result |= {"pads": 10, "positions": 40}
    about = {"suite": "pretraining", "case": "tiny-128", "role": "sample", "run": run, "machine": MACHINE}
    return {**about, "side": side, "round": round_number, "spec": {}, "result": result}


def matmul(gflops: float, run: str = "a") -> dict:
    result = {"best_gflops": {"bf16": gflops}, "vendor_peak_bf16_tflops": None}
    about = {"suite": "pretraining", "case": "tiny-128", "role": "matmul", "run": run, "machine": MACHINE}
    return {**about, "side": "", "round": None, "spec": {}, "result": result}


def test_records_are_added_and_none_is_changed(tmp_path):
    file = ResultsFile(tmp_path / "inner" / "machine.json")
    first = ""
    for number in range(3):
        file.append(sample("ours", number, 10.0 + number))
        lines = file.path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == number + 3  # head, one line a record, end
        first = first or lines[1].rstrip(",")
        assert lines[1].rstrip(",") == first
    assert [record["round"] for record in file.records()] == [0, 1, 2]
    assert json.loads(file.path.read_text(encoding="utf-8"))["format_version"] == 1
    assert [path.name for path in file.path.parent.iterdir()] == ["machine.json"]


def add_records(path, side):
    for number in range(20):
        ResultsFile(path).append(sample(side, number, 1.0))


def test_two_runs_may_add_to_one_file(tmp_path):
    """Two `make benchmark` at once: no record is lost."""
    path = tmp_path / "machine.json"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_records, args=(path, side)) for side in ("ours", "stock_best")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = [(record["side"], record["round"]) for record in ResultsFile(path).records()]
    assert sorted(found) == sorted((side, number) for side in ("ours", "stock_best") for number in range(20))


def test_an_interrupted_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    file = ResultsFile(tmp_path / "machine.json")
    file.append(sample("ours", 0, 1.0))
    before = file.path.read_bytes()

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        file.append(sample("ours", 1, 2.0))
    assert file.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]


@pytest.mark.parametrize("content", ["{", '{"records": []}', "[]"])
def test_a_damaged_or_foreign_file_is_never_overwritten(tmp_path, content: str):
    file = ResultsFile(tmp_path / "machine.json")
    file.path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"machine\.json"):
        file.append(sample("ours", 0, 1.0))
    assert file.path.read_text(encoding="utf-8") == content


def test_nan_becomes_null(tmp_path):
    file = ResultsFile(tmp_path / "machine.json")
    file.append({"values": [float("nan"), 1.0], "inner": {"x": float("inf")}})
    assert file.records() == [{"values": [None, 1.0], "inner": {"x": None}}]


def test_a_ratio_is_the_median_over_rounds_of_ratios_within_a_round():
    rounds = [
        {"ours": {"rate": 30.0}, "stock_best": {"rate": 10.0}},
        {"ours": {"rate": 10.0}, "stock_best": {"rate": 10.0}},
        {"ours": {"rate": 8.0}, "stock_best": {"rate": 4.0}},
        {"ours": {"rate": 99.0}},
    ]
    ratio = ratio_of(rounds, "stock_best", "rate")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (2.0, 1.0, 3.0, 3)
    assert ratio_of(rounds, "stock_defaults", "rate") is None


def test_a_row_has_medians_memory_and_the_share_of_the_machines_rate():
    records = [sample("stock_defaults", n, rate, memory=200.0) for n, rate in enumerate((10.0, 11.0, 30.0))]
    records += [sample("ours", n, rate) for n, rate in enumerate((50.0, 55.0, 60.0))] + [matmul(110.0)]
    (row,) = make_rows(records)
    assert row.rates == {"stock_defaults": 11.0, "ours": 55.0}
    assert row.speedups["stock_defaults"].median == 5.0
    assert row.memory == {"stock_defaults": 200.0, "ours": 100.0}
    assert row.mfu["ours"] == 0.5
    assert row.pads == 0.25
    assert row.of_peak == {}


def test_the_plot_has_the_ratio_of_the_table():
    """Of the rounds, not of the medians: that would be 5.5."""
    rates = {"stock_defaults": (10.0, 12.0, 10.0), "stock_best": (20.0, 36.0, 30.0), "ours": (55.0, 60.0, 40.0)}
    (row,) = make_rows([sample(side, n, rate) for side, found in rates.items() for n, rate in enumerate(found)])
    assert [speed_multiple(row, side) for side in rates] == [1.0, 3.0, row.speedups["stock_defaults"].median]
    assert speed_multiple(row, "ours") == 5.0
    (alone,) = make_rows([sample("stock_defaults", 0, 1.0), sample("ours", 1, 2.0)])
    assert speed_multiple(alone, "ours") is None, "no round has both"


def test_only_the_last_run_of_a_case_is_reported():
    records = [sample("ours", 0, 1.0, run="old"), sample("ours", 0, 2.0, run="new")]
    (found,) = last_runs(records).values()
    assert [record["run"] for record in found] == ["new"]
    assert make_rows(records)[0].rates["ours"] == 2.0


def test_the_report_says_what_failed(tmp_path):
    file = ResultsFile(tmp_path / "amd.json")
    failed = sample("stock_defaults", 0, 1.0)
    del failed["result"]
    file.append(failed | {"error": "exit code 1: no memory"})
    file.append(sample("ours", 0, 1234.0))
    table = write_report(tmp_path)
    assert "| tiny-128 | failed | - | 1,234 |" in table
    assert "- pretraining tiny-128, stock_defaults, round 1: exit code 1: no memory" in table
    assert "stock at its best, " not in table
    assert (tmp_path / "benchmarks.md").read_text(encoding="utf-8") == table


def cells_of(table: str, column: str) -> list[str]:
    """A column of the first table."""
    lines = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("|")]
    place = lines[0].index(column)
    return [line[place] for line in lines[2:]]


def test_a_side_that_failed_in_one_round_is_told_too(tmp_path):
    file = ResultsFile(tmp_path / "amd.json")
    for number in range(3):
        file.append(sample("ours", number, 10.0))
        file.append(sample("stock_best", number, 5.0))
    failed = sample("stock_best", 3, 1.0)
    del failed["result"]
    file.append(failed | {"error": "ended by signal 9"})
    table = write_report(tmp_path)
    assert "- pretraining tiny-128, stock_best, round 4: ended by signal 9" in table
    assert cells_of(table, "rounds") == ["3"]
    file.append(sample("ours", 3, 10.0))
    assert cells_of(write_report(tmp_path), "rounds") == ["3, 4"]


def test_the_report_says_what_was_not_tried(tmp_path):
    """Of the search that the run took its switches from, on its machine."""
    file = ResultsFile(tmp_path / "amd.json")
    start = {"switch": "start", "value": {}, "rate": 1.0, "kept": True, "problem": None}
    left = {"switch": "compile", "value": True, "rate": None, "kept": False, "problem": "not tried: 5 s left"}
    search = {"role": "search", "suite": "pretraining", "case": "tiny-128", "side": "stock_best", "run": "old"}
    file.append(search | {"machine": MACHINE, "search": {"best": {}, "tries": [start, left]}})
    other = search | {"machine": MACHINE | {"threads": 1}, "search": {"best": {}, "tries": [start]}}
    file.append(other)
    best = sample("stock_best", 0, 1.0)
    file.append(best | {"spec": {"switches": {"attn": "eager"}}})
    file.append(sample("ours", 0, 2.0))
    file.append(other | {"machine": MACHINE})
    expected = "- stock at its best, tiny-128: attn eager; not tried: compile True; decided by one short try each"
    assert expected in write_report(tmp_path).splitlines()


def test_rows_of_several_revisions_and_versions_say_so(tmp_path):
    file = ResultsFile(tmp_path / "amd.json")
    for case, revision, torch in (("tiny-128", "abc", "2"), ("mini-128", "def+", "3")):
        machine = MACHINE | {"revision": revision, "torch": torch}
        file.append(sample("ours", 0, 1.0) | {"case": case, "machine": machine})
    file.append(sample("ours", 0, 1.0) | {"case": "base-128"})
    table = write_report(tmp_path)
    assert cells_of(table, "revision") == ["abc", "def+", "not recorded"]
    assert "torch 2, transformers 5 (pretraining tiny-128, pretraining base-128); torch 3" in table


@pytest.mark.parametrize(("count", "shown"), [(1, "one sample"), (2, "10.00 .. 11.00")])
def test_one_sample_has_no_spread(tmp_path, count: int, shown: str):
    file = ResultsFile(tmp_path / "amd.json")
    for number in range(count):
        result = {"about": "text -> store", "unit": "MB", "per_second": 10.0 + number}
        file.append(sample("ours", number, 1.0) | {"suite": "data", "case": "store_1", "result": result})
    assert cells_of(write_report(tmp_path), "least .. most") == [shown]


def test_the_report_says_what_each_step_gave(tmp_path):
    file = ResultsFile(tmp_path / "amd.json")
    for side, rate in (("stock_defaults", 100.0), ("ours_fp32", 300.0), ("ours_bf16", 600.0), ("ours", 1500.0)):
        file.append(sample(side, 0, rate) | {"suite": "steps"})
    lines = [line for line in write_report(tmp_path).splitlines() if line.startswith("| tiny-128 |")]
    assert [line.split("|")[3:5] for line in lines] == [
        [" 100 ", "  "],
        [" 300 ", " 3.00x "],
        [" 600 ", " 2.00x "],
        [" 1,500 ", " 2.50x "],
    ]


def test_a_folder_without_results_is_one_clear_line(tmp_path):
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="no results file"):
        read_folder(tmp_path)


def test_machines_are_told_apart():
    assert machine_name(MACHINE) == "amd_epyc_2_cores"
    assert machine_name(MACHINE | {"gpu": "NVIDIA H200"}) == "nvidia_h200"
    newer = MACHINE | {"processor_model": "family 26, model 2"}
    assert machine_name(newer) == "amd_epyc_family_26_model_2_2_cores"
    assert not same_machine(MACHINE, newer)
    assert same_machine(MACHINE, dict(MACHINE))
    assert not same_machine(MACHINE, MACHINE | {"threads": 1})
