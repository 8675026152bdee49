"""How stock at its best is searched, and which earlier searches count."""

from dataclasses import replace
from pathlib import Path

import pytest
from speed import stock_search, suites
from speed.arguments import BenchmarkArguments
from speed.cases import list_cases
from speed.results import ResultsFile
from speed.runner import SampleRunner
from speed.spec import OURS, STOCK_BEST, STOCK_DEFAULTS
from speed.stock_search import StockSearch, known_best, last_search, rate_of_try
from speed.suites import CaseRun, run_suite

from bert_recipes.errors import InputError


CONFIGS = Path(__file__).resolve().parents[2] / "recipes" / "configs"
MACHINE = {"processor": "AMD EPYC", "gpu": None, "cores": 2, "threads": 2, "torch": "2", "transformers": "5"}


def cases_of(tmp_path, **settings):
    return list_cases(BenchmarkArguments(**{"sizes": ["tiny"], "use_cpu": True} | settings), CONFIGS, tmp_path)


class Clock:
    """A deadline whose time is what the samples take."""

    def __init__(self, seconds):
        self.seconds, self.elapsed = seconds, 0.0

    @property
    def left(self):
        return self.seconds - self.elapsed


def result_of(seconds, tokens=1000):
    steps = list(seconds)
    return {
        "step_seconds": steps,
        "step_tokens": [tokens] * len(steps),
        "step_sequences": [8] * len(steps),
        "tokens_per_second": tokens * len(steps) / sum(steps),
        "examples_per_second": 8 * len(steps) / sum(steps),
    }


def searched(tmp_path, limit, earlier=(), **settings):
    """The record of a search whose tries take ten seconds each, compiling 40; bf16 doubles the rate."""
    args = BenchmarkArguments(sizes=["tiny"], use_cpu=True, **settings)
    (case,) = list_cases(args, CONFIGS, tmp_path)
    clock, found = Clock(limit), []

    def run(spec, role):
        clock.elapsed += 40.0 if spec.switches.get("compile") else 10.0
        return {"result": result_of([1.0 if spec.switches.get("precision") == "bf16" else 2.0] * 3)}

    StockSearch(case, args, clock, earlier, run, found.append).find()
    return {**found[0], "run": "a", "machine": MACHINE} if found else None


def left_of(record):
    return [(item["switch"], item["value"]) for item in record["search"]["tries"] if item["problem"]]


def test_one_slow_step_does_not_decide_about_a_try():
    steady, disturbed = result_of([1.0] * 5), result_of([1.0, 1.0, 1.0, 1.0, 9.0])
    for rate in ("tokens_per_second", "examples_per_second"):
        assert rate_of_try(disturbed, rate, whole_pass=False) == rate_of_try(steady, rate, whole_pass=False)
    # Padded to the maximum, batches of like length take the same time whatever they hold: none of them speaks for all.
    grouped = result_of([1.0] * 4) | {"step_tokens": [2000, 2000, 1900, 100]}
    assert rate_of_try(grouped, "tokens_per_second", whole_pass=False) == 1500
    # Steps of a whole pass are of unlike lengths: all of them count.
    assert rate_of_try(disturbed, "tokens_per_second", whole_pass=True) == disturbed["tokens_per_second"]


def test_compiling_is_tried_when_a_search_goes_on(tmp_path):
    """A first search leaves half of the time to the rounds, and the default half is too short for compiling."""
    limit = 225.0  # seven and a half minutes for two cases
    assert limit * stock_search.SEARCH_SHARE < stock_search.COMPILE_SECONDS
    first = searched(tmp_path, limit)
    assert ("compile", True) in left_of(first)
    second = searched(tmp_path, limit, earlier=[first])
    assert ("compile", True) not in left_of(second)
    assert {item["switch"] for item in second["search"]["tries"] if item["rate"]} >= {"compile", "attn", "optim"}
    third = searched(tmp_path, limit, earlier=[second]) or second
    assert not left_of(third)
    assert searched(tmp_path, limit, earlier=[third]) is None


def test_a_search_alone_takes_the_whole_time(tmp_path):
    limit = 300.0
    assert left_of(searched(tmp_path, limit))
    whole = searched(tmp_path, limit, search="only")
    assert not left_of(whole)
    assert searched(tmp_path, limit, earlier=[whole]) is None


def test_a_search_for_other_work_does_not_count(tmp_path):
    record = searched(tmp_path, 1000.0, search="only")
    (case,) = cases_of(tmp_path)
    planned = case.samples[STOCK_DEFAULTS]
    assert last_search([record], planned) == record["search"]
    assert last_search([record], replace(planned, budget_seconds=1.0)) == record["search"]
    for change in ({"tokens_per_step": 128}, {"vocab_size": 1000}, {"length": 64}, {"documents": "mixed"}):
        assert last_search([record], replace(planned, **change)) is None


def test_what_an_older_search_was_made_for_stands_in_its_tries(tmp_path):
    record = searched(tmp_path, 1000.0, search="only")
    planned = cases_of(tmp_path)[0].samples[STOCK_DEFAULTS]
    spec = record.pop("spec")
    attempt = {"role": "try", "run": "a", "spec": {**spec, "side": STOCK_BEST, "warmup_steps": 1}}
    assert last_search([attempt, record], planned) == record["search"]
    assert last_search([attempt, record], replace(planned, vocab_size=1000)) is None
    assert last_search([record], planned) is None


def test_without_a_search_there_is_no_best(tmp_path):
    for suite in ("pretraining", "finetuning"):
        (case,) = cases_of(tmp_path, suite=suite, search="off")
        assert list(case.samples) == [STOCK_DEFAULTS, OURS]
        (case,) = cases_of(tmp_path, suite=suite)
        assert list(case.samples) == [STOCK_DEFAULTS, STOCK_BEST, OURS]


def test_searching_alone_is_for_suites_that_search():
    with pytest.raises(InputError, match="nothing is searched for data"):
        BenchmarkArguments(suite="data", search="only")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "tiny-128"),
        ({"tokens_per_step": 4096}, "tiny-128"),
        ({"tokens_per_step": 256, "documents": "mixed"}, "tiny-128-mixed-256tokens"),
        ({"vocab_size": 1000}, "tiny-128-vocab1000"),
        ({"suite": "steps", "vocab_size": 1000}, "tiny-128-vocab1000"),
        ({"suite": "finetuning", "batch_size": 8}, "sst2-tiny-batch8"),
        ({"suite": "inference", "vocab_size": 99}, "sst2-tiny-fp32-vocab99"),
        ({"suite": "data", "megabytes": 2.0}, "store_1-2mb"),
        ({"suite": "time_to_quality", "minutes": 2.0}, "tiny-2min"),
    ],
)
def test_a_name_tells_what_is_not_the_default(tmp_path, settings, name):
    assert cases_of(tmp_path, **settings)[0].name == name


def quality_run(tmp_path, known, **settings):
    args = BenchmarkArguments(suite="time_to_quality", sizes=["tiny"], use_cpu=True, **settings)
    (case,) = list_cases(args, CONFIGS, tmp_path)
    return CaseRun(case, args, SampleRunner(ResultsFile(tmp_path / "none.json"), "run"), Clock(1.0), known)


def search_record(machine, **best):
    outcome = {"best": {"precision": "bf16", "attn": "sdpa", **best}, "tries": []}
    about = {"suite": "pretraining", "case": "tiny-128", "role": "search", "side": STOCK_BEST, "run": "a"}
    return {**about, "machine": machine, "search": outcome}


def test_a_run_to_a_quality_takes_what_was_searched_or_says_that_it_has_the_defaults(tmp_path):
    known = [search_record(MACHINE, order="group_by_length", compile=True)]
    found = quality_run(tmp_path, known).samples
    assert found[STOCK_BEST].switches == {"precision": "bf16", "order": "group_by_length"}
    for samples in (quality_run(tmp_path, []).samples, quality_run(tmp_path, known, search="off").samples):
        assert set(samples) == {OURS, STOCK_DEFAULTS}
        assert not samples[STOCK_DEFAULTS].switches
    assert known_best([], found[STOCK_BEST]) is None


def test_searches_of_another_machine_do_not_count(tmp_path, monkeypatch):
    results = ResultsFile(tmp_path / "results.json")
    results.append(search_record(MACHINE | {"threads": 1}, attn="eager"))
    seen = []
    monkeypatch.setattr(CaseRun, "run", lambda self: seen.append(self.samples))
    args = BenchmarkArguments(suite="time_to_quality", sizes=["tiny"], use_cpu=True)
    for machine in (MACHINE, MACHINE | {"threads": 1}):
        run_suite(list_cases(args, CONFIGS, tmp_path), args, results, machine)
    assert [set(samples) for samples in seen] == [{OURS, STOCK_DEFAULTS}, {OURS, STOCK_BEST}]


def test_cases_for_which_no_time_is_left_are_left_out_by_name(tmp_path, monkeypatch, caplog):
    clocks, ran = [], []
    monkeypatch.setattr(suites, "Deadline", lambda seconds: clocks.append(Clock(seconds)) or clocks[-1])

    def take_three_minutes(run):
        ran.append(run.case.name)
        clocks[0].elapsed += 180

    monkeypatch.setattr(CaseRun, "run", take_three_minutes)
    args = BenchmarkArguments(sizes=["tiny", "mini", "small"], use_cpu=True, time_limit_minutes=5)
    run_suite(list_cases(args, CONFIGS, tmp_path), args, ResultsFile(tmp_path / "r.json"), MACHINE)
    assert ran == ["tiny-128", "mini-128"]
    assert "no time for small-128;" in caplog.text


def test_rounds_with_another_best_are_measured_anew(tmp_path, monkeypatch):
    """A resumed run whose search has found something else would mix two sides under one name."""
    args = BenchmarkArguments(sizes=["tiny"], use_cpu=True, rounds=2, resume=True)
    (case,) = list_cases(args, CONFIGS, tmp_path)
    old = {"suite": "pretraining", "case": case.name, "role": "sample", "round": 0, "run": "run", "machine": MACHINE}
    records = [{**old, "side": side, "spec": spec.describe(), "result": {}} for side, spec in case.samples.items()]
    measured = []
    for best in (dict(case.start), case.start | {"precision": "bf16"}):
        run = CaseRun(case, args, SampleRunner(ResultsFile(tmp_path / "r.json"), "run"), Clock(1e6), records)
        monkeypatch.setattr(run, "_search", lambda best=best: best)
        monkeypatch.setattr(run, "_run", lambda *args, **about: {"result": {}})
        numbers = []
        monkeypatch.setattr(run, "_sample", lambda spec, number, numbers=numbers: numbers.append((spec.side, number)))
        run.run()
        measured.append(numbers)
    second_round = [(side, 1) for side in case.samples]
    assert measured == [second_round, [(side, 0) for side in case.samples] + second_round]
