"""Measure the hours of a run, and estimate its energy and CO2.

The energy is the power draw that the user gives times the hours, the CO2 that times the carbon
intensity that the user gives.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bert_recipes.errors import InputError


WATT_SECONDS_PER_KWH = 3_600_000


@dataclass(frozen=True)
class EnergySettings:
    """Hold the settings of the estimate; without a power draw there is none."""

    power_watts: float | None = None  # of the machine
    country_iso_code: str | None = None  # ISO 3166-1 alpha-3, for the card
    carbon_intensity: float | None = None  # g CO2e/kWh

    def check(self) -> None:
        """Refuse settings that cannot be followed."""
        code = self.country_iso_code
        if code is not None and not re.fullmatch("[A-Z]{3}", code):
            raise InputError(
                f"country_iso_code is '{code}'; allowed: three letters of ISO 3166-1, for example "
                "DEU, USA, FRA"
            )
        if self.power_watts is None and self != EnergySettings():
            raise InputError(
                "country_iso_code and carbon_intensity belong to an estimate of the energy: give "
                "--power_watts too"
            )


class RunTime:
    """Measure the seconds of a run, those before its resumes included.

    The `with` block is the time since the last resume. What a process computed after its last
    checkpoint and before it was killed does not count: that work is lost.
    """

    def __init__(self) -> None:
        self.is_whole = True  # whether the seconds before the resume are known
        self._seconds_before = 0.0
        self._seconds = 0.0
        self._start: float | None = None

    def __enter__(self) -> None:
        self.is_whole = True
        self._seconds_before = 0.0
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds = self._seconds_since_start()
        self._start = None

    @property
    def seconds(self) -> float:
        """Return the seconds of the run up to now, in this process."""
        return self._seconds_before + self._seconds_since_start()

    def _seconds_since_start(self) -> float:
        if self._start is None:
            return self._seconds
        return time.perf_counter() - self._start

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, JSON."""
        return {"seconds": self.seconds, "is_whole": self.is_whole}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Add the seconds of a checkpoint; None: it does not have them."""
        if state is None:
            self.is_whole = False
        else:
            self.is_whole = state["is_whole"]
            self._seconds_before = state["seconds"]


def cost_facts(run_time: RunTime, settings: EnergySettings) -> dict[str, Any]:
    """Return what all_results.json says: `train_seconds`, `train_seconds_is_whole`, `energy`."""
    seconds = run_time.seconds
    facts: dict[str, Any] = {
        "train_seconds": round(seconds, 1),
        "train_seconds_is_whole": run_time.is_whole,
    }
    watts = settings.power_watts
    if watts is None:
        return facts
    kwh = watts * seconds / WATT_SECONDS_PER_KWH
    energy = {
        "kwh": kwh,
        "seconds": round(seconds, 1),
        "estimated_by": f"a given power draw of {watts:g} W times the hours",
    }
    if settings.carbon_intensity is not None:
        energy["co2_kg"] = kwh * settings.carbon_intensity / 1000
    for name, value in asdict(settings).items():
        if value is not None:
            energy[name] = value
    facts["energy"] = energy
    return facts
