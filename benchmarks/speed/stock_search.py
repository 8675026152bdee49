"""The search for stock at its best: short samples of stock with other switches, and what earlier searches have found."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from speed.arguments import ONLY, BenchmarkArguments
from speed.cases import Case
from speed.runner import Deadline
from speed.search import is_unfinished, search_switches, tried, untried
from speed.spec import STOCK_BEST, STOCK_DEFAULTS, SampleSpec, same_work
from speed.stock_switches import CHOICES, stock_defaults


logger = logging.getLogger(__name__)

# A first search may take this share of a case's time, one that goes on with an earlier one all of it. Compiling needs at least so
# many seconds.
SEARCH_SHARE = 0.5
COMPILE_SECONDS = 150.0
# What anybody would try first; on a CPU page faults hide what the others do unless the allocator is told to keep memory.
USUAL_SWITCHES = {"glibc": True, "precision": "bf16", "padding": "batch", "order": "group_by_length"}
# Tries are shorter than samples.
TRY_SECONDS, TRY_STEPS, TRY_WARMUP, TRY_WARMUP_SECONDS, COMPILE_WARMUP, TRY_PASS = 5.0, 4, 2, 5.0, 3, 8


class StockSearch:
    """Finds the switches of one case.

    Args:
        case: With `searched` switches.
        args: Settings.
        deadline: Of the case.
        earlier: Records of this case on this machine.
        run: Runs a sample of a role and gives its record.
        add: Takes the record of the search.
    """

    def __init__(
        self,
        case: Case,
        args: BenchmarkArguments,
        deadline: Deadline,
        earlier: Sequence[Mapping[str, Any]],
        run: Callable[..., Mapping[str, Any]],
        add: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.case, self.args, self.deadline, self.earlier = case, args, deadline, earlier
        self._run, self._add = run, add

    def find(self) -> dict[str, Any]:
        """Switches of the last search for the same work on this machine, gone on with where it left something out; or of a new one."""
        planned = self.case.samples[STOCK_DEFAULTS]
        last = None if self.args.search == "again" else last_search(self.earlier, planned)
        choices: dict[str, Sequence[Any]] = {name: CHOICES[name] for name in self.case.searched}
        if last is None:
            return self._search(self.case.start, choices, [])
        if not is_unfinished(last):
            return dict(last["best"])
        logger.info("  the search goes on with what it left out")
        left = untried(last)
        choices = {name: [last["best"][name], *left[name]] for name in self.case.searched if name in left}
        return self._search(last["best"], choices, tried(last))

    def _search(
        self, start: Mapping[str, Any], choices: Mapping[str, Sequence[Any]], tries: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        begin = self.deadline.elapsed
        share = 1.0 if tries or self.args.search == ONLY else SEARCH_SHARE
        end = begin + share * max(self.deadline.left, 0.0)
        # Those that compile take much longer than the others.
        longest = {False: 0.0, True: 0.0}

        def measure(switches: Mapping[str, Any]) -> tuple[float | None, str | None]:
            before = self.deadline.elapsed
            rate, problem = self._try(switches)
            kind = bool(switches["compile"])
            longest[kind] = max(longest[kind], self.deadline.elapsed - before)
            changed = [f"{name} {value}" for name, value in switches.items() if value != self.case.start[name]]
            logger.info("  search: %s: %s", ", ".join(changed) or "defaults", problem or f"{rate:,.1f}")
            return rate, problem

        def why_not(switch: str, switches: Mapping[str, Any]) -> str | None:
            left = end - self.deadline.elapsed
            kind = bool(switches["compile"])
            needed = longest[kind] or (COMPILE_SECONDS if kind else longest[True])
            return f"{left:.0f} s left for it, about {needed:.0f} s needed" if left < needed else None

        usual = {name: value for name, value in USUAL_SWITCHES.items() if name in self.case.searched}
        found = search_switches(start, choices, measure, why_not, usual, tries)
        outcome = found.as_json()
        outcome["tries"] = [*tries, *outcome["tries"]]
        record = {"suite": self.case.suite, "case": self.case.name, "role": "search", "side": STOCK_BEST}
        spec = self.case.samples[STOCK_DEFAULTS].describe()
        self._add(record | {"wall_seconds": round(self.deadline.elapsed - begin, 1), "spec": spec, "search": outcome})
        return found.best

    def _try(self, switches: Mapping[str, Any]) -> tuple[float | None, str | None]:
        first = self.case.samples[STOCK_DEFAULTS]
        shorter = replace(
            first,
            side=STOCK_BEST,
            switches={name: value for name, value in switches.items() if value != self.case.start[name]},
            max_steps=min(first.max_steps, TRY_PASS) if self.case.suite == "finetuning" else first.max_steps,
            warmup_steps=COMPILE_WARMUP if switches["compile"] else TRY_WARMUP,
            warmup_seconds=min(first.warmup_seconds, TRY_WARMUP_SECONDS),
            min_steps=TRY_STEPS,
            budget_seconds=min(TRY_SECONDS, self.args.budget_seconds),
        )
        spec = replace(shorter, **pass_of(self.case, switches, shorter))
        record = self._run(spec, role="try")
        if "error" in record:
            return None, record["error"]
        return rate_of_try(record["result"], self.case.rate, whole_pass=spec.whole_pass), None


def rate_of_try(result: Mapping[str, Any], rate: str, *, whole_pass: bool) -> float:
    """What the steps gave together, without those that took more than twice the median one: they compiled, or something else ran.

    Not the median of the steps' rates: with batches of like length, padded to the maximum, a step of long rows has by far the most real
    tokens a second, and a step of short ones the fewest. Of a whole pass all steps count.

    Args:
        result: Of a sample.
        rate: "tokens_per_second" or "examples_per_second".
        whole_pass: Whether all batches of a pass were measured.
    """
    if whole_pass:
        return result[rate]
    amounts = {"tokens_per_second": "step_tokens", "examples_per_second": "step_sequences"}[rate]
    longest = 2 * statistics.median(result["step_seconds"])
    kept = [pair for pair in zip(result[amounts], result["step_seconds"], strict=True) if pair[1] <= longest]
    return sum(amount for amount, _ in kept) / sum(seconds for _, seconds in kept)


def pass_of(case: Case, switches: Mapping[str, Any], spec: SampleSpec) -> dict[str, Any]:
    """Fine-tuning with batches of like length is measured as a whole, as ours is: in its second epoch."""
    grouped = case.suite == "finetuning" and switches.get("order") == "group_by_length"
    return {"whole_pass": True, "warmup_steps": spec.max_steps} if grouped else {"whole_pass": False}


def last_search(records: Iterable[Mapping[str, Any]], planned: SampleSpec) -> dict[str, Any] | None:
    """The last search among the records that was made for the same work.

    Args:
        records: Of one case.
        planned: Sample of stock's defaults now.
    """
    found = None
    first_try: dict[str, Any] = {}
    for record in records:
        if record["role"] == "try":
            first_try.setdefault(record["run"], record["spec"])
        elif record["role"] == "search":
            # Searches of older files say what they were made for in their tries alone.
            spec = record.get("spec", first_try.get(record["run"]))
            if spec is not None and same_work(spec, json.loads(json.dumps(planned.describe()))):
                found = record["search"]
    return found


def known_best(records: Iterable[Mapping[str, Any]], spec: SampleSpec) -> dict[str, Any] | None:
    """Switches of stock for a size: of the last search of the pre-training suite at 128 tokens; None where there is none.

    Args:
        records: Of this machine.
        spec: The size.
    """
    case = f"{spec.size}-128"
    found = [r for r in records if (r["suite"], r["case"], r["role"]) == ("pretraining", case, "search")]
    if not found:
        return None
    best, start = found[-1]["search"]["best"], stock_defaults()
    # Compiling anew for every length of a batch takes more of the minutes than it gives.
    return {name: value for name, value in best.items() if value != start.get(name) and name != "compile"}
