"""Rounds of samples: the sides take turns, so that whatever else the machine does meets all of them alike."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from speed.arguments import ALL, OFF, ONLY, BenchmarkArguments
from speed.cases import Case
from speed.results import ResultsFile, of_case, same_machine
from speed.runner import Deadline, SampleRunner
from speed.spec import STOCK_BEST, STOCK_DEFAULTS, SampleSpec
from speed.stock_search import COMPILE_WARMUP, StockSearch, known_best, pass_of


logger = logging.getLogger(__name__)


def run_suite(
    cases: Sequence[Case], args: BenchmarkArguments, results: ResultsFile, machine: Mapping[str, Any]
) -> None:
    """Run the cases one after the other within the time limit.

    Args:
        cases: Of `list_cases`.
        args: Settings.
        results: Gets every sample.
        machine: Of this machine; earlier samples count only where it is the same.
    """
    resume = args.suite == ALL if args.resume is None else args.resume
    whole = Deadline(args.time_limit_minutes * 60)
    for number, case in enumerate(cases):
        if number and args.suite != ALL and whole.left <= 0:
            names = ", ".join(each.name for each in cases[number:])
            logger.warning(
                "no time for %s; give more, or fewer cases: --time_limit_minutes is %g", names, args.time_limit_minutes
            )
            return
        limit = whole.seconds if args.suite == ALL else max(whole.left, 0.0) / (len(cases) - number)
        known = [record for record in results.records() if _fits(record, machine)]
        run_name = _last_run(of_case(known, case.suite, case.name)) if resume else None
        runner = SampleRunner(results, run_name or time.strftime("%Y%m%d-%H%M%S"), args.threads)
        logger.info("case %d of %d: %s %s", number + 1, len(cases), case.suite, case.name)
        CaseRun(case, args, runner, Deadline(limit), known).run()


def _fits(record: Mapping[str, Any], machine: Mapping[str, Any]) -> bool:
    return record.get("machine") is not None and same_machine(record["machine"], machine)


def _last_run(records: Iterable[Mapping[str, Any]]) -> str | None:
    runs = [record["run"] for record in records if record["role"] == "sample"]
    return runs[-1] if runs else None


class CaseRun:
    """The search and the rounds of one case.

    Args:
        case: What is compared.
        args: Settings.
        runner: Runs and records.
        deadline: Of this case; one round is finished whatever it says.
        known: All records of this machine.
    """

    def __init__(
        self,
        case: Case,
        args: BenchmarkArguments,
        runner: SampleRunner,
        deadline: Deadline,
        known: Sequence[Mapping[str, Any]],
    ) -> None:
        self.case, self.args, self.runner, self.deadline = case, args, runner, deadline
        self.known, self.earlier = known, of_case(known, case.suite, case.name)
        self.samples = self._planned_samples()
        self.done = {
            (record["side"], record["round"])
            for record in self.earlier
            if record["role"] == "sample" and record["run"] == runner.run_name and self._is_planned(record)
        }
        self.machine: Mapping[str, Any] | None = None

    def _is_planned(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is a finished sample with the settings of now; the switches of stock's best are found anew."""
        if "result" not in record or record["side"] not in self.samples:
            return False
        own = {"switches", "whole_pass", "warmup_steps"} if record["side"] == STOCK_BEST else set()
        planned = self.samples[record["side"]].describe()
        return {k: v for k, v in planned.items() if k not in own} == {
            k: v for k, v in json.loads(json.dumps(record["spec"])).items() if k not in own
        }

    def run(self) -> None:
        """Everything that is not there yet."""
        wanted = {(side, number) for side in self.samples for number in range(self._rounds)}
        if self.args.search == ONLY:
            if self._is_searched:
                self._search()
            return
        if wanted <= self.done:
            logger.info("  finished before")
            return
        samples = self._searched_samples()
        if STOCK_BEST in samples and self._had_other_switches(samples[STOCK_BEST]):
            logger.info("  stock's best is another one now: the rounds are measured anew")
            self.done = set()
        for number in range(self._rounds):
            begin = self.deadline.elapsed
            for side, spec in samples.items():
                if (side, number) not in self.done:
                    self._sample(spec, number)
            if number == 0 and self.case.matmul is not None and not self._has_matmul:
                self._run(self.case.matmul, role="matmul")
            took = self.deadline.elapsed - begin
            if took * 1.05 > self.deadline.left and number + 1 < self._rounds:
                logger.info("  no time for another round (%.0f s): %d of %d", took, number + 1, self._rounds)
                break

    def _planned_samples(self) -> dict[str, SampleSpec]:
        """The samples of a round; in a run to a quality stock has the switches that were found for its size, or its defaults."""
        samples = dict(self.case.samples)
        if self.case.suite == "time_to_quality":
            spec = samples.pop(STOCK_BEST)
            found = None if self.args.search == OFF else known_best(self.known, spec)
            if found is None:
                logger.info("  stock with its defaults: no search for %s-128 on this machine is known", spec.size)
                samples[STOCK_DEFAULTS] = replace(spec, side=STOCK_DEFAULTS)
            else:
                samples[STOCK_BEST] = replace(spec, switches=found)
        return samples

    def _searched_samples(self) -> dict[str, SampleSpec]:
        """The planned ones, stock at its best with the switches that a search has found."""
        samples = dict(self.samples)
        if self._is_searched:
            best = {name: value for name, value in self._search().items() if value != self.case.start[name]}
            warmup = COMPILE_WARMUP if best.get("compile") else samples[STOCK_BEST].warmup_steps
            passes = pass_of(self.case, best, samples[STOCK_BEST])
            samples[STOCK_BEST] = replace(samples[STOCK_BEST], **{"switches": best, "warmup_steps": warmup, **passes})
        return samples

    def _had_other_switches(self, best: SampleSpec) -> bool:
        """Whether the run that is gone on with has rounds in which stock's best had other switches."""
        own = [
            r for r in self.earlier if (r["role"], r["side"], r["run"]) == ("sample", STOCK_BEST, self.runner.run_name)
        ]
        return any(
            (r["side"], r["round"]) in self.done and r["spec"].get("switches", {}) != best.switches for r in own
        )

    @property
    def _is_searched(self) -> bool:
        return STOCK_BEST in self.case.samples and bool(self.case.searched)

    def _search(self) -> dict[str, Any]:
        return StockSearch(self.case, self.args, self.deadline, self.earlier, self._run, self._add_search).find()

    def _add_search(self, record: Mapping[str, Any]) -> None:
        self.runner.add({**record, "machine": self.machine})

    @property
    def _rounds(self) -> int:
        # A run to a quality is one long sample.
        return 1 if self.case.suite == "time_to_quality" else self.args.rounds

    @property
    def _has_matmul(self) -> bool:
        return any(record["role"] == "matmul" and record["run"] == self.runner.run_name for record in self.earlier)

    def _run(self, spec: Any, **about: Any) -> dict[str, Any]:
        record = self.runner.run(spec, suite=self.case.suite, case=self.case.name, **about)
        self.machine = record["machine"] or self.machine
        return record

    def _sample(self, spec: Any, number: int) -> None:
        record = self._run(spec, round_number=number)
        figure = record["result"].get(self.case.rate) if "result" in record else record["error"]
        shown = f"{figure:,.1f}" if isinstance(figure, float) else figure
        logger.info("  round %d %s: %s %s", number + 1, spec.side, shown, self.case.rate.replace("_", " "))
