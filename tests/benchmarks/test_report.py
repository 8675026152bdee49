"""The results file and what is read off it."""

import json
import multiprocessing

import pytest
from report import median_of, mfu_of, multiples, write_report
from results import (
    add_result,
    fastest_stock,
    last_runs,
    machine_name,
    ratio_of,
    read_results,
    same_machine,
)

from bert_recipes.errors import InputError


MACHINE = {
    "processor": "AMD EPYC",
    "gpu": None,
    "cores": 2,
    "threads": 2,
    "torch": "2",
    "transformers": "5",
}
CASE = {
    "suite": "pretraining",
    "case": "tiny-128",
    "run": "a",
    "machine": MACHINE,
    "spec": {},
}
RATE = "tokens_per_second"


def sample(side, number, rate, **changes):
    result = {
        RATE: rate,
        "peak_memory_mb": 200.0 if side == "stock_defaults" else 100.0,
        "gflops_per_second": rate,
        "precision": "bf16",
        "pads": 10,
        "positions": 40,
    }
    return CASE | {"role": "sample", "side": side, "round": number, "result": result} | changes


def samples(**rates: tuple[float, ...]):
    """A record of every round of each side."""
    records = []
    for side, values in rates.items():
        records += [sample(side, number, rate) for number, rate in enumerate(values)]
    return records


def failed(side, number, error):
    return CASE | {"role": "sample", "side": side, "round": number, "error": error}


@pytest.fixture
def table(tmp_path):
    """Writes records to a results file; returns the lines of the report."""

    def write(*records: dict):
        for record in records:
            add_result(tmp_path / "amd.json", record)
        text = write_report(tmp_path)
        assert (tmp_path / "benchmarks.md").read_text(encoding="utf-8") == text
        return text.splitlines()

    return write


def cells_of(lines, column):
    """A column of the first table."""
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    place = rows[0].index(column)
    return [row[place] for row in rows[2:]]


def add_records(path, side):
    for number in range(20):
        add_result(path, sample(side, number, float("nan")))


def test_figures_are_medians_and_shares_of_the_machines_rate():
    records = samples(stock_defaults=(10.0, 11.0, 30.0), ours=(50.0, 55.0, 60.0))
    best = {"best_gflops": {"bf16": 110.0}}
    records.append(CASE | {"role": "matmul", "side": "", "result": best})
    assert median_of(records, "stock_defaults", RATE) == 11.0
    assert median_of(records, "stock_bf16", RATE) is None
    assert mfu_of(records, "ours") == 0.5


def test_only_the_last_run_of_a_case_is_reported():
    records = [sample("ours", 0, 1.0), sample("ours", 0, 2.0, run="new")]
    assert list(last_runs(records).values()) == [records[1:]]


def test_two_runs_may_add_to_one_file(tmp_path):
    """Two `make benchmark` at once: no record is lost; one line a record, and no NaN, which JSON
    does not have.
    """
    path = tmp_path / "inner" / "machine.json"
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=add_records, args=(path, "ours"))
    process.start()
    add_records(path, "stock_bf16")
    process.join()
    records = read_results(path)
    places = {(record["side"], record["round"]) for record in records}
    assert len(places) == len(records) == 40
    assert {record["result"][RATE] for record in records} == {None}
    before = path.read_text(encoding="utf-8").splitlines()
    assert len(before) == 42  # head, one line a record, end
    add_result(path, sample("ours", 20, 1.0))
    text = path.read_text(encoding="utf-8")
    assert text.splitlines()[:40] == before[:40]
    assert json.loads(text)["format_version"] == 1
    assert [item.name for item in path.parent.iterdir()] == ["machine.json"]


@pytest.mark.parametrize("content", ["{", '{"records": []}', "[]"])
def test_a_damaged_or_foreign_file_is_never_overwritten(tmp_path, content):
    file = tmp_path / "machine.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"machine\.json"):
        add_result(file, sample("ours", 0, 1.0))
    assert file.read_text(encoding="utf-8") == content


def test_a_ratio_is_the_median_over_rounds_of_ratios_within_a_round():
    records = samples(ours=(30.0, 10.0, 8.0, 99.0), stock_bf16=(10.0, 10.0, 4.0))
    assert ratio_of(records, "stock_bf16", RATE) == (2.0, 1.0, 3.0, 3)
    assert ratio_of(records, "stock_defaults", RATE) is None
    other_rounds = [sample("stock_defaults", 0, 1.0), sample("ours", 1, 2.0)]
    assert ratio_of(other_rounds, "stock_defaults", RATE) is None


def test_stock_at_its_best_is_the_fastest_of_its_configurations():
    records = samples(
        stock_defaults=(3.0, 3.0), stock_bf16=(9.0, 1.0, 1.0), stock_eager=(2.0, 2.0), ours=(9.0,)
    )
    assert fastest_stock(records) == "stock_defaults"
    assert fastest_stock([*records, *samples(stock_like_lengths=(4.0,))]) == "stock_like_lengths"
    assert fastest_stock(samples(stock_defaults=(3.0,), ours=(9.0,))) is None


def test_the_plot_has_the_ratio_of_the_table():
    """Of the rounds, not of the medians: that would be 5.5."""
    records = samples(
        stock_defaults=(10.0, 12.0, 10.0), stock_bf16=(20.0, 36.0, 30.0), ours=(55.0, 60.0, 40.0)
    )
    assert multiples(records, "pretraining") == [(1.0, 1.0), (3.0, 0.5), (5.0, 0.5)]
    alone = [sample("stock_defaults", 0, 1.0), sample("ours", 1, 2.0)]
    assert [ratio for ratio, _ in multiples(alone, "pretraining")] == [1.0, None, None]


def test_the_table_has_a_row_a_case_and_says_what_stock_did(table):
    records = samples(
        stock_defaults=(10.0, 10.0),
        stock_bf16=(20.0,),
        ours=(200.0, 200.0),
    )
    for number, rate in enumerate((40.0, 50.0)):
        spec = {"switches": {"attention": "eager"}}
        records.append(sample("stock_eager", number, rate, spec=spec))
    lines = table(*records)
    expected = (
        "| tiny-128 | 10.0 | 45.0 | 200 | 20.00x (20.00 .. 20.00) | 4.50x (4.00 .. 5.00) | "
        "200, 100, 100 | - | 25.0% |"
    )
    assert any(line.startswith(expected) for line in lines)
    assert "- stock at its best, tiny-128: stock_eager (attention eager); stock_bf16 20.0" in lines
    assert cells_of(lines, "rounds") == ["2"]


def test_rows_of_an_older_command_say_so(table):
    """It searched for stock's switches, and added every try to the file."""
    best = sample("stock_best", 0, 5.0, spec={"switches": {"attn": "eager"}})
    attempt = CASE | {"role": "try", "side": "stock_best", "round": None}
    lines = table(attempt, sample("stock_defaults", 0, 1.0), best, sample("ours", 0, 10.0))
    note = "attn eager; found by the search of an older command"
    assert f"- stock at its best, tiny-128: {note}" in lines
    assert cells_of(lines, "ours / best") == ["2.00x"]


def test_every_sample_that_failed_is_told(table):
    lines = table(failed("stock_defaults", 0, "exit code 1: no memory"), sample("ours", 0, 1234.0))
    assert any(line.startswith("| tiny-128 | failed | - | 1,234 |") for line in lines)
    assert "- pretraining tiny-128, stock_defaults, round 1: exit code 1: no memory" in lines
    assert cells_of(lines, "rounds") == ["0, 1"]


def test_rows_of_several_revisions_and_versions_say_so(table):
    lines = table(
        sample("ours", 0, 1.0, case="base-128"),
        sample("ours", 0, 1.0, machine=MACHINE | {"revision": "abc"}),
        sample(
            "ours", 0, 1.0, case="mini-128", machine=MACHINE | {"revision": "def+", "torch": "3"}
        ),
    )
    assert cells_of(lines, "revision") == ["not recorded", "abc", "def+"]
    versions = (
        "torch 2, transformers 5 (pretraining base-128, pretraining tiny-128); torch 3, "
        "transformers 5 (pretraining mini-128)"
    )
    assert any(line.startswith(versions) for line in lines)


def test_one_sample_has_no_spread(table):
    result = {"about": "text -> store", "unit": "MB", "per_second": 10.0}
    faster = result | {"per_second": 11.0}
    lines = table(sample("ours", 0, 1.0, suite="data", result=result))
    assert cells_of(lines, "least .. most") == ["one sample"]
    lines = table(sample("ours", 1, 1.0, suite="data", result=faster))
    assert cells_of(lines, "least .. most") == ["10.00 .. 11.00"]


def test_the_report_says_what_each_step_gave(table):
    rates = {"stock_defaults": 100.0, "ours_fp32": 300.0, "ours_bf16": 600.0, "ours": 1500.0}
    lines = table(*(sample(side, 0, rate, suite="steps") for side, rate in rates.items()))
    assert cells_of(lines, "over the line above") == ["", "3.00x", "2.00x", "2.50x"]


def test_machines_are_told_apart():
    assert machine_name(MACHINE) == "amd_epyc_2_cores"
    assert machine_name(MACHINE | {"gpu": "NVIDIA H200"}) == "nvidia_h200"
    newer = MACHINE | {"processor_model": "family 26, model 2"}
    assert machine_name(newer) == "amd_epyc_family_26_model_2_2_cores"
    assert not same_machine(MACHINE, newer)
    assert same_machine(MACHINE, dict(MACHINE))
    assert not same_machine(MACHINE, MACHINE | {"threads": 1})
