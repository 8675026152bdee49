"""What training costs: hours, energy and CO2, summed over all parts of a run, its processes and machines."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from accelerate.utils import gather_object

from bert_recipes.emissions import EnergyMeter, EnergySettings


logger = logging.getLogger(__name__)

_GRAMS_A_KILOGRAM = 1000.0


class RunCost:
    """Hours, energy and CO2 of a run: those of its parts before, as the checkpoint says, and of this one.

    What a process computed after its last checkpoint and before it was killed is in no sum: that work is lost.

    Args:
        settings: Checked.
        is_first: Whether this is the main process of the run.
        is_first_of_machine: Whether this process measures its machine.
        num_processes: Of the run.
    """

    def __init__(
        self, settings: EnergySettings, *, is_first: bool, is_first_of_machine: bool, num_processes: int
    ) -> None:
        self._meter = EnergyMeter(settings, is_first=is_first, is_first_of_machine=is_first_of_machine)
        self._num_processes = num_processes
        self._before: Mapping[str, Any] = {}
        self._since: float | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        """A part begins; what was before it is not known yet."""
        self._before, self._seconds = {}, 0.0
        self._since = time.perf_counter()
        self._meter.start()

    def go_on_from(self, before: Mapping[str, Any] | None) -> None:
        """Add the parts before.

        Args:
            before: What `so_far` said in the checkpoint; None for one that says nothing: then the sums are not whole.
        """
        self._before = {"is_whole": False} if before is None else dict(before)

    def end(self) -> None:
        """The part ends."""
        if self._since is not None:
            self._seconds, self._since = time.perf_counter() - self._since, None
            self._meter.stop()

    def so_far(self) -> dict[str, Any]:
        """The sums over all parts, processes and machines, JSON; every process must call it.

        Returns:
            `seconds`; `is_whole`: whether they are known from the run's first step on; with an estimate of the energy also
            `energy_seconds` (for which it is known), `energy_kwh`, `methods`, and with a carbon intensity `co2_kg`.
        """
        seconds = self._seconds if self._since is None else time.perf_counter() - self._since
        own: dict[str, Any] = {"kwh": self._meter.kilowatt_hours(seconds), "method": self._meter.method}
        everyone = gather_object([own]) if self._num_processes > 1 else [own]
        before = self._before
        total: dict[str, Any] = {
            "seconds": before.get("seconds", 0.0) + seconds,
            "is_whole": before.get("is_whole", True),
        }
        readings = [each for each in everyone if each["kwh"] is not None]
        if not readings and "energy_kwh" not in before:
            return total
        kwh = sum(each["kwh"] for each in readings)
        total["energy_seconds"] = before.get("energy_seconds", 0.0) + (seconds if readings else 0.0)
        total["energy_kwh"] = before.get("energy_kwh", 0.0) + kwh
        total["methods"] = _added(before.get("methods", ()), readings)
        intensity = self._meter.settings.grams_a_kilowatt_hour
        # A sum of which a part is not known is not known.
        if (intensity is not None or not readings) and ("energy_kwh" not in before or "co2_kg" in before):
            total["co2_kg"] = before.get("co2_kg", 0.0) + kwh * (intensity or 0.0) / _GRAMS_A_KILOGRAM
        return total


def _added(before: Any, readings: list[dict[str, Any]]) -> list[str]:
    """The ways of measuring of all parts, the newest figures of each."""
    now = [each["method"] for each in readings if each["method"] is not None]
    kinds = {method.split(";")[0] for method in now}
    return list(dict.fromkeys([*(method for method in before if method.split(";")[0] not in kinds), *now]))


def cost_facts(cost: Mapping[str, Any], settings: EnergySettings) -> dict[str, Any]:
    """What all_results.json says of the cost of training.

    Args:
        cost: Of `RunCost.so_far`, after training.
        settings: Those of the last part.

    Returns:
        `train_seconds`, over all parts of the run; `train_seconds_is_whole`, false where the first ones are not known;
        `energy`, an estimate, where there is one.
    """
    facts: dict[str, Any] = {"train_seconds": round(cost["seconds"], 1), "train_seconds_is_whole": cost["is_whole"]}
    if "energy_kwh" in cost:
        energy: dict[str, Any] = {"kwh": cost["energy_kwh"], "seconds": round(cost["energy_seconds"], 1)}
        if "co2_kg" in cost:
            energy["co2_kg"] = cost["co2_kg"]
        facts["energy"] = energy | {"estimated_by": "; ".join(cost["methods"])} | settings.describe()
    elif settings != EnergySettings():
        logger.warning("codecarbon could not measure the energy of this run; all_results.json says nothing of it")
    return facts
