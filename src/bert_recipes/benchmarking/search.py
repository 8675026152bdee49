"""Stock at its best: the usual switches at once, then one after the other, each value tried, the faster one kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


START, USUAL = "start", "usual"


@dataclass(frozen=True)
class Try:
    """One combination.

    Attributes:
        switch: Which switch was turned; `START` for the combination that the search begins with, `USUAL` for several at once.
        value: To what.
        rate: Tokens or examples a second; None where there is none.
        kept: Whether it was faster than the best before.
        problem: Why there is no rate: an error, or "not tried: ...".
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
        rate: Of the best; None where the first combination failed already.
        tries: All of them in their order.
    """

    best: dict[str, Any]
    rate: float | None
    tries: list[Try] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self)


def search_switches(
    start: Mapping[str, Any],
    choices: Mapping[str, Sequence[Any]],
    measure: Callable[[Mapping[str, Any]], tuple[float | None, str | None]],
    why_not: Callable[[str], str | None] = lambda switch: None,
    usual: dict[str, Any] | None = None,
) -> SearchResult:
    """Turn one switch after the other and keep what is faster.

    Args:
        start: Switch -> value to begin with.
        usual: Switch -> value, tried together first: alone each of them may show little.
        choices: Switch -> its values, in the order in which the switches are tried.
        measure: Switches -> (rate, None), or (None, what went wrong).
        why_not: Switch -> why it is not tried (no time left), or None.

    Returns:
        The best combination and every try; a combination that fails is a try with its problem.
    """
    best = dict(start)
    rate, problem = measure(best)
    tries = [Try(START, dict(start), rate, kept=rate is not None, problem=problem)]
    if usual:
        found, problem = measure(best | usual)
        kept = found is not None and (rate is None or found > rate)
        tries.append(Try(USUAL, dict(usual), found, kept=kept, problem=problem))
        if kept:
            best, rate = best | usual, found
    for switch, values in choices.items():
        first = best[switch]
        for value in values:
            if value == first:
                continue
            reason = why_not(switch)
            if reason is not None:
                tries.append(Try(switch, value, problem=f"not tried: {reason}"))
                continue
            found, problem = measure(best | {switch: value})
            kept = found is not None and (rate is None or found > rate)
            tries.append(Try(switch, value, found, kept=kept, problem=problem))
            if kept:
                best, rate = best | {switch: value}, found
    return SearchResult(best, rate, tries)


def untried(result: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Switch -> values of a finished search (as JSON) that there was no time for."""
    left: dict[str, list[Any]] = {}
    for item in result["tries"]:
        if item["problem"] and item["problem"].startswith("not tried"):
            left.setdefault(item["switch"], []).append(item["value"])
    return left
