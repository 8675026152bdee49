"""The energy of training and the CO2 of its electricity, as an estimate.

Energy is either the power draw that the user gives times the time, or what codecarbon (an extra) reads off or models on each
machine. CO2 is energy times the carbon intensity of the electricity: given, or codecarbon's figure for a country. Nothing here
reaches the network, and nothing that goes wrong while it is measured ends a run.
"""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

_SECONDS_AN_HOUR, _WATTS_A_KILOWATT = 3600.0, 1000.0
# How often codecarbon reads the power; its own default.
_MEASURE_SECONDS = 15
_EXTRA = "pip install 'bert-recipes[emissions]'"
_COUNTRIES = "allowed: three letters of ISO 3166-1, for example DEU, USA, FRA"


@dataclass(frozen=True)
class EnergySettings:
    """How the energy of a run is estimated; nothing given: not at all.

    Attributes:
        power_watts: Draw of all that the run uses, watts.
        country_iso_code: Country of the machines, three letters (DEU).
        carbon_intensity: Of the electricity, grams of CO2 equivalent a kilowatt-hour.
    """

    power_watts: float | None = None
    country_iso_code: str | None = None
    carbon_intensity: float | None = None

    def check(self, *, has_energy: bool = False) -> None:
        """See that the settings can be followed; done before anything else, as a run may take days.

        Args:
            has_energy: Whether the energy is known already.
        """
        for name, holds, allowed in (
            ("power_watts", self.power_watts is None or 0 < self.power_watts < math.inf, "above 0"),
            ("carbon_intensity", self.carbon_intensity is None or 0 <= self.carbon_intensity < math.inf, "0 or more"),
        ):
            if not holds:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: {allowed}")
        has_energy = has_energy or self.power_watts is not None
        if self.country_iso_code is not None and not (has_energy and self.carbon_intensity is not None):
            intensity_of_country(self.country_iso_code)
        elif self.country_iso_code is not None and not re.fullmatch("[A-Z]{3}", self.country_iso_code):
            raise InputError(f"country_iso_code is '{self.country_iso_code}'; {_COUNTRIES}")
        elif self.carbon_intensity is not None and not has_energy:
            raise InputError(
                "carbon_intensity makes CO2 of energy, but nothing says how much energy: give --power_watts too, or "
                "--country_iso_code, with which codecarbon measures it"
            )

    @property
    def grams_a_kilowatt_hour(self) -> float | None:
        """Carbon intensity: the one given, else that of the country; None where neither is known."""
        if self.carbon_intensity is not None or self.country_iso_code is None:
            return self.carbon_intensity
        return intensity_of_country(self.country_iso_code)

    def describe(self) -> dict[str, Any]:
        """The settings and what they come to, for all_results.json; what is not known is left out."""
        facts = {
            "power_watts": self.power_watts,
            "country_iso_code": self.country_iso_code,
            "carbon_intensity": self.grams_a_kilowatt_hour,
        }
        return {name: value for name, value in facts.items() if value is not None}


def intensity_of_country(code: str) -> float:
    """Carbon intensity of a country's electricity as codecarbon has it on the disk, g CO2e/kWh.

    Args:
        code: ISO 3166-1, three letters.
    """
    if find_spec("codecarbon") is None:
        raise InputError(
            f"country_iso_code: codecarbon is not installed; {_EXTRA}, or give --power_watts and --carbon_intensity"
        )
    from codecarbon.input import DataSource

    countries = DataSource().get_global_energy_mix_data()
    if code not in countries:
        hint = f"did you mean {code.upper()}?" if code.upper() in countries else _COUNTRIES
        raise InputError(f"country_iso_code is '{code}'; {hint}")
    return float(countries[code]["carbon_intensity"])


class EnergyMeter:
    """Energy of one stretch of time on this machine.

    Args:
        settings: Checked.
        is_first: Whether this is the main process of the run.
        is_first_of_machine: Whether this process measures its machine.
    """

    def __init__(self, settings: EnergySettings, *, is_first: bool, is_first_of_machine: bool) -> None:
        self.settings = settings
        self._is_given = is_first and settings.power_watts is not None
        wants_tracker = settings.power_watts is None and settings.country_iso_code is not None
        self._has_tracker = is_first_of_machine and wants_tracker
        self._tracker: Any = None
        self._last: Any = None
        self._since: float | None = None

    def start(self) -> None:
        """Begin."""
        self._since = time.perf_counter()
        if self._has_tracker:
            self._tracker, self._last = _make_tracker(self, self.settings), None
            self._tracker.start()

    def stop(self) -> None:
        """Take the last reading; codecarbon's threads end."""
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def kilowatt_hours(self, seconds: float) -> float | None:
        """Energy since `start`; None where this process measures nothing, or codecarbon could not.

        Args:
            seconds: Since `start`.
        """
        if self._is_given and self.settings.power_watts is not None:
            return self.settings.power_watts / _WATTS_A_KILOWATT * seconds / _SECONDS_AN_HOUR
        if self._tracker is not None:
            self._tracker.flush()
        if self._last is None or not math.isfinite(self._last.energy_consumed):
            return None
        return float(self._last.energy_consumed)

    @property
    def method(self) -> str | None:
        """How the energy was estimated; None where it was not."""
        if self._is_given:
            return f"a given power draw of {self.settings.power_watts:g} W times the hours"
        if self._last is None:
            return None
        powers = [(part, getattr(self._last, f"{part.lower()}_power")) for part in ("CPU", "GPU", "RAM")]
        means = " + ".join(f"{part} {watts:.1f} W" for part, watts in powers if watts)
        version, mode = self._last.codecarbon_version, self._last.tracking_mode
        return f"codecarbon {version}, tracking mode {mode}; on average {means or 'no power'}"

    # What codecarbon calls with its totals when it is flushed or stopped (its BaseOutput).

    def out(self, total: Any, delta: Any) -> None:
        """Keep the totals."""
        self._last = total

    def live_out(self, total: Any, delta: Any) -> None:
        """Keep the totals."""
        self._last = total

    def task_out(self, data: Any, experiment_name: str) -> None:
        """There are no tasks."""

    def exit(self) -> None:
        """Nothing is open."""


def _make_tracker(meter: EnergyMeter, settings: EnergySettings) -> Any:
    """A tracker of codecarbon that writes no file and asks nobody; its methods log what goes wrong and raise nothing."""
    logging.getLogger("codecarbon").setLevel(logging.CRITICAL)  # it also speaks before it knows its own level
    from codecarbon import OfflineEmissionsTracker

    return OfflineEmissionsTracker(
        country_iso_code=settings.country_iso_code,
        # Whatever the user's own configuration of codecarbon says: no file, no service, no lock.
        output_methods=[],
        output_handlers=[meter],
        emissions_endpoint=None,
        electricitymaps_api_token=None,
        force_carbon_intensity_g_co2e_kwh=settings.grams_a_kilowatt_hour,
        allow_multiple_runs=True,
        measure_power_secs=_MEASURE_SECONDS,
        api_call_interval=-1,
        tracking_mode="machine",
        log_level="critical",
    )
