"""Rounds of samples: the sides take turns, so that whatever else the machine does meets all of them alike."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from bert_recipes.benchmarking.arguments import ALL, BenchmarkArguments
from bert_recipes.benchmarking.cases import Case
from bert_recipes.benchmarking.results import ResultsFile, of_case, same_machine
from bert_recipes.benchmarking.runner import Deadline, SampleRunner
from bert_recipes.benchmarking.search import SearchResult, search_switches, untried
from bert_recipes.benchmarking.spec import STOCK_BEST, STOCK_DEFAULTS, SampleSpec
from bert_recipes.benchmarking.stock_switches import CHOICES, stock_defaults
from bert_recipes.precision import choose_precision


logger = logging.getLogger(__name__)

# A search may take this share of a case's time; compiling needs at least so many seconds of it.
SEARCH_SHARE = 0.5
COMPILE_SECONDS = 150.0
# Tries are shorter than samples.
# What anybody would try first; on a CPU page faults hide what the others do unless the allocator is told to keep memory.
USUAL_SWITCHES = {"glibc": True, "precision": "bf16", "padding": "batch", "order": "group_by_length"}
TRY_SECONDS, TRY_STEPS, TRY_WARMUP, COMPILE_WARMUP, TRY_PASS = 5.0, 3, 1, 3, 8


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
        limit = whole.seconds if args.suite == ALL else max(whole.left, 0.0) / (len(cases) - number)
        earlier = [record for record in of_case(results.records(), case.suite, case.name) if _fits(record, machine)]
        run_name = _last_run(earlier) if resume else None
        runner = SampleRunner(results, run_name or time.strftime("%Y%m%d-%H%M%S"), args.threads)
        logger.info("case %d of %d: %s %s", number + 1, len(cases), case.suite, case.name)
        CaseRun(case, args, runner, Deadline(limit), earlier).run()


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
        earlier: Records of this case on this machine.
    """

    def __init__(
        self,
        case: Case,
        args: BenchmarkArguments,
        runner: SampleRunner,
        deadline: Deadline,
        earlier: Sequence[Mapping[str, Any]],
    ) -> None:
        """Find out what is there already."""
        self.case, self.args, self.runner, self.deadline = case, args, runner, deadline
        self.earlier = earlier
        self.done = {
            (record["side"], record["round"])
            for record in earlier
            if record["role"] == "sample" and record["run"] == runner.run_name and self._is_planned(record)
        }
        self.machine: Mapping[str, Any] | None = None

    def _is_planned(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is a finished sample with the settings of now; the switches of stock's best are found anew."""
        if "result" not in record or record["side"] not in self.case.samples:
            return False
        own = {"switches", "whole_pass", "warmup_steps"} if record["side"] == STOCK_BEST else set()
        planned = self.case.samples[record["side"]].describe()
        return {k: v for k, v in planned.items() if k not in own} == {
            k: v for k, v in json.loads(json.dumps(record["spec"])).items() if k not in own
        }

    def run(self) -> None:
        """Everything that is not there yet."""
        wanted = {(side, number) for side in self.case.samples for number in range(self._rounds)}
        if wanted <= self.done:
            logger.info("  finished before")
            return
        samples = dict(self.case.samples)
        if STOCK_BEST in samples and self.case.searched:
            best = {name: value for name, value in self._best_switches().items() if value != self.case.start[name]}
            warmup = COMPILE_WARMUP if best.get("compile") else samples[STOCK_BEST].warmup_steps
            samples[STOCK_BEST] = replace(
                samples[STOCK_BEST],
                **{"switches": best, "warmup_steps": warmup, **self._pass_of(best, samples[STOCK_BEST])},
            )
        elif self.case.suite == "time_to_quality":
            switches = known_best(self.runner.results.records(), samples[STOCK_BEST])
            samples[STOCK_BEST] = replace(samples[STOCK_BEST], switches=switches)
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

    def _pass_of(self, switches: Mapping[str, Any], spec: SampleSpec) -> dict[str, Any]:
        """Fine-tuning with batches of like length is measured as a whole, as ours is: in its second epoch."""
        grouped = self.case.suite == "finetuning" and switches.get("order") == "group_by_length"
        return {"whole_pass": True, "warmup_steps": spec.max_steps} if grouped else {"whole_pass": False}

    # The search

    def _best_switches(self) -> dict[str, Any]:
        """Of the last search on this machine, gone on with where there was no time; or of a new one."""
        last = [record for record in self.earlier if record["role"] == "search"]
        choices: dict[str, Sequence[Any]] = {name: CHOICES[name] for name in self.case.searched}
        if last and self.args.search == "reuse":
            before = last[-1]["search"]
            left = untried(before)
            if not left:
                return dict(before["best"])
            choices = {name: [before["best"][name], *values] for name, values in left.items()}
            return self._search(before["best"], choices, before["tries"])
        return self._search(self.case.start, choices, [])

    def _search(
        self, start: Mapping[str, Any], choices: Mapping[str, Sequence[Any]], tries: Sequence[Any]
    ) -> dict[str, Any]:
        begin = self.deadline.elapsed
        end = begin + SEARCH_SHARE * max(self.deadline.left, 0.0)
        longest = 0.0

        def measure(switches: Mapping[str, Any]) -> tuple[float | None, str | None]:
            nonlocal longest
            before = self.deadline.elapsed
            rate, problem = self._try(switches)
            longest = max(longest, self.deadline.elapsed - before)
            changed = [f"{name} {value}" for name, value in switches.items() if value != self.case.start[name]]
            logger.info("  search: %s: %s", ", ".join(changed) or "defaults", problem or f"{rate:,.1f}")
            return rate, problem

        def why_not(switch: str) -> str | None:
            left = end - self.deadline.elapsed
            needed = COMPILE_SECONDS if switch == "compile" else longest
            return f"{left:.0f} s left for it, about {needed:.0f} s needed" if left < needed else None

        usual = None if tries else {name: value for name, value in USUAL_SWITCHES.items() if name in choices}
        found: SearchResult = search_switches(start, choices, measure, why_not, usual)
        outcome = found.as_json()
        known = [item for item in tries if not str(item["problem"]).startswith("not tried")]
        outcome["tries"] = [*known, *outcome["tries"]]
        record = {"suite": self.case.suite, "case": self.case.name, "role": "search", "side": STOCK_BEST}
        seconds = round(self.deadline.elapsed - begin, 1)
        self.runner.add(record | {"machine": self.machine, "wall_seconds": seconds, "search": outcome})
        return found.best

    def _try(self, switches: Mapping[str, Any]) -> tuple[float | None, str | None]:
        first = self.case.samples[STOCK_DEFAULTS]
        shorter = replace(
            first,
            side=STOCK_BEST,
            switches={name: value for name, value in switches.items() if value != self.case.start[name]},
            max_steps=min(first.max_steps, TRY_PASS) if self.case.suite == "finetuning" else first.max_steps,
            warmup_steps=COMPILE_WARMUP if switches["compile"] else TRY_WARMUP,
            warmup_seconds=0.0,
            min_steps=TRY_STEPS,
            budget_seconds=min(TRY_SECONDS, self.args.budget_seconds),
        )
        spec = replace(shorter, **self._pass_of(switches, shorter))
        record = self._run(spec, role="try")
        if "error" in record:
            return None, record["error"]
        return record["result"][self.case.rate], None


def known_best(records: Iterable[Mapping[str, Any]], spec: SampleSpec) -> dict[str, Any]:
    """Switches of stock for a size: the last search of the pre-training suite, or bf16 where the machine has it."""
    case = f"{spec.size}-128"
    found = [r for r in records if (r["suite"], r["case"], r["role"]) == ("pretraining", case, "search")]
    if found:
        best, start = found[-1]["search"]["best"], stock_defaults()
        # Compiling anew for every length of a batch takes more of the minutes than it gives.
        return {name: value for name, value in best.items() if value != start.get(name) and name != "compile"}
    precision = choose_precision("auto", use_cpu=spec.use_cpu or not torch.cuda.is_available()).name
    return {"precision": precision} if precision == "bf16" else {}
