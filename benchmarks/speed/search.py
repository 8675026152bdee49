"""Stock at its best: usual switches at once, then each alone; what lost narrowly is tried again, and the last two once more."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


# What a try is of, where it is no single switch: the first combination, several switches at once, the best of the first round once
# more, one of the two best of all at the end.
START, USUAL, AGAIN, LAST = "start", "usual", "again", "last"
NOT_TRIED, NOT_REPEATED = "not tried: ", "not repeated: "
# A value that was slower gets a second try if it reached this share of the faster one's rate: short tries vary that much.
NEAR = 0.7
# How many of the best are compared at the end.
FINALISTS = 2

Measure = Callable[[Mapping[str, Any]], tuple[float | None, str | None]]
WhyNot = Callable[[str, Mapping[str, Any]], str | None]


@dataclass(frozen=True)
class Try:
    """One combination.

    Attributes:
        switch: Which switch was turned; or `START`, `USUAL`, `AGAIN`, `LAST`.
        value: To what; a mapping of switches for those four.
        rate: Tokens or examples a second; None where there is none.
        kept: Whether it was faster than the best before.
        problem: Why there is no rate: an error, or "not tried: ...", "not repeated: ...".
    """

    switch: str
    value: Any = None
    rate: float | None = None
    kept: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        best: Switch -> value.
        rate: Of the best, the median of its tries; None where no combination worked.
        tries: All of them in their order.
    """

    best: dict[str, Any]
    rate: float | None
    tries: list[Try] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self)


class _Search:
    """The best so far, all rates by combination, and the tries."""

    def __init__(self, start: Mapping[str, Any], measure: Measure, why_not: WhyNot) -> None:
        self.measure, self.why_not = measure, why_not
        self.best = dict(start)
        self.tries: list[Try] = []
        self._rates: list[tuple[dict[str, Any], list[float]]] = []

    def rate_of(self, switches: Mapping[str, Any]) -> float | None:
        """The median of a combination's tries."""
        found = next((rates for known, rates in self._rates if known == switches), None)
        return statistics.median(found) if found else None

    def attempt(self, switch: str, value: Any, switches: dict[str, Any], note: str | None = None) -> None:
        """Measure a combination, and keep it if it is faster than the best.

        Args:
            switch: Which is turned, or what the try is of.
            value: To what.
            switches: The combination.
            note: What it is called where there is no time for it; None: it is made whatever the time.
        """
        reason = None if note is None else self.why_not(switch, switches)
        if reason is not None:
            self.tries.append(Try(switch, value, problem=f"{note}{reason}"))
            return
        before = self.rate_of(self.best)
        rate, problem = self.measure(switches)
        if rate is not None:
            known = next((rates for other, rates in self._rates if other == switches), None)
            if known is None:
                self._rates.append((switches, [rate]))
            else:
                known.append(rate)
        own = self.rate_of(switches)
        kept = rate is not None and own is not None and (before is None or switches == self.best or own > before)
        self.tries.append(Try(switch, value, rate, kept=kept, problem=problem))
        if kept:
            self.best = switches

    def finalists(self) -> list[dict[str, Any]]:
        """The fastest combinations."""
        order = sorted(self._rates, key=lambda item: statistics.median(item[1]), reverse=True)
        return [switches for switches, _ in order[:FINALISTS]]

    def compare_finalists(self) -> None:
        """Measure the two fastest once more: the best may only have been lucky."""
        finalists = self.finalists()
        for switches in finalists:
            self.attempt(LAST, switches, switches, NOT_REPEATED)
        if finalists:
            self.best = max(finalists, key=lambda switches: self.rate_of(switches) or 0.0)


def search_switches(
    start: Mapping[str, Any],
    choices: Mapping[str, Sequence[Any]],
    measure: Measure,
    why_not: WhyNot = lambda switch, switches: None,
    usual: Mapping[str, Any] | None = None,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> SearchResult:
    """Turn one switch after the other and keep what is faster; then give what lost by little, or by bad luck, a second try.

    Args:
        start: Switch -> value to begin with.
        choices: Switch -> its values, in the order in which the switches are tried.
        measure: Switches -> (rate, None), or (None, what went wrong).
        why_not: (Switch, combination) -> why it is not tried (no time left), or None.
        usual: Switch -> value; tried together first, as alone each of them may show little, and always a second time if rejected.
        earlier: Tries of a search that this one goes on with, as JSON.

    Returns:
        The best combination and every new try; a combination that fails is a try with its problem.
    """
    search = _Search(start, measure, why_not)
    search.attempt(START, dict(start), dict(start))
    if usual and not earlier:
        search.attempt(USUAL, dict(usual), search.best | dict(usual))
    for switch, values in choices.items():
        first = search.best[switch]
        for value in values:
            if value != first:
                search.attempt(switch, value, search.best | {switch: value}, NOT_TRIED)
    played = [*earlier, *(asdict(item) for item in search.tries)]
    candidates = near_misses(played, search.best, usual or {})
    if candidates:
        search.attempt(AGAIN, dict(search.best), search.best, NOT_REPEATED)
    for switch, value in candidates:
        if search.best[switch] != value:
            search.attempt(switch, value, search.best | {switch: value}, NOT_REPEATED)
    search.compare_finalists()
    return SearchResult(search.best, search.rate_of(search.best), search.tries)


def near_misses(
    tries: Iterable[Mapping[str, Any]], best: Mapping[str, Any], usual: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """(switch, value) pairs that a search rejected narrowly, and the usual ones that it rejected at all; these come first.

    Args:
        tries: As JSON, in their order.
        best: What the search has come to.
        usual: Switch -> value.
    """
    now: dict[str, Any] = {}
    rate: float | None = None
    shares: dict[tuple[str, Any], float] = {}
    for item in tries:
        switch, value, own = item["switch"], item["value"], item["rate"]
        if own is None:
            continue
        if switch in (START, USUAL, AGAIN, LAST):
            if item["kept"]:
                now, rate = now | value, own
        elif item["kept"]:
            shares[switch, now.get(switch)] = 0.0 if rate is None else rate / own
            now, rate = now | {switch: value}, own
        else:
            shares[switch, value] = 0.0 if rate is None else own / rate
    rejected = [(name, value) for name, value in usual.items() if best.get(name) != value]
    near = sorted((pair for pair, share in shares.items() if share >= NEAR), key=lambda pair: -shares[pair])
    return rejected + [
        (name, value) for name, value in near if best.get(name) != value and (name, value) not in rejected
    ]


def untried(result: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Switch -> values of a finished search (as JSON) that there was no time for."""
    left: dict[str, list[Any]] = {}
    for item in result["tries"]:
        if str(item["problem"]).startswith(NOT_TRIED):
            left.setdefault(item["switch"], []).append(item["value"])
    return left


def is_unfinished(result: Mapping[str, Any]) -> bool:
    """Whether a search (as JSON) left something out for want of time, or is of a kind that repeated nothing."""
    tries = result["tries"]
    return any(_is_left(item) for item in tries) or not any(item["switch"] == LAST for item in tries)


def _is_left(item: Mapping[str, Any]) -> bool:
    return str(item["problem"]).startswith((NOT_TRIED, NOT_REPEATED))


def tried(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tries of a finished search (as JSON) without those that there was no time for."""
    return [item for item in result["tries"] if not _is_left(item)]


def what_is_left(result: Mapping[str, Any]) -> list[str]:
    """One line each for what a search did not try and did not repeat; [] where nothing is left."""
    lines = []
    for note in (NOT_TRIED, NOT_REPEATED):
        found = [item for item in result["tries"] if str(item["problem"]).startswith(note)]
        shown = [_shown(item["switch"], item["value"]) for item in found]
        if shown:
            lines.append(note + ", ".join(dict.fromkeys(shown)))
    if not any(item["switch"] == LAST or str(item["problem"]).startswith(NOT_REPEATED) for item in result["tries"]):
        lines.append("decided by one short try each")
    return lines


def _shown(switch: str, value: Any) -> str:
    names = {AGAIN: "the best", LAST: "the last comparison"}
    return names.get(switch, f"{switch} {value}")
