"""Measure what a run costs: hours, and estimates of energy and CO2.

Energy is the power draw that the user gives times the time, or what codecarbon (an extra) reads off
or models on each machine; CO2 is that times the carbon intensity that is given, or codecarbon's for
a country. Nothing here reaches the network, and nothing that goes wrong while it is measured ends a
run.
"""

import logging
import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

_COUNTRIES = "allowed: three letters of ISO 3166-1, for example DEU, USA, FRA"


@dataclass(frozen=True)
class EnergySettings:
    """Settings for the estimate of a run's energy: watts, ISO 3166-1 alpha-3, g CO2e/kWh; without
    any there is none.
    """

    power_watts: float | None = None
    country_iso_code: str | None = None
    carbon_intensity: float | None = None

    def check(self) -> None:
        """Refuse settings that cannot be followed."""
        power, code, intensity = self.power_watts, self.country_iso_code, self.carbon_intensity
        if power is not None and not 0 < power < math.inf:
            raise InputError(f"power_watts is {power}; allowed: above 0")
        if intensity is not None and not 0 <= intensity < math.inf:
            raise InputError(f"carbon_intensity is {intensity}; allowed: 0 or more")
        has_energy = power is not None
        if code is not None and not (has_energy and intensity is not None):
            intensity_of_country(code)
        elif code is not None and not re.fullmatch("[A-Z]{3}", code):
            raise InputError(f"country_iso_code is '{code}'; {_COUNTRIES}")
        elif intensity is not None and not has_energy:
            raise InputError(
                "carbon_intensity turns energy into CO2, but the energy is not known: give "
                "--power_watts too, or "
                "--country_iso_code, with which codecarbon measures it"
            )

    @property
    def grams_per_kilowatt_hour(self) -> float | None:
        """Carbon intensity: the one given, else that of the country; None where neither is
        known.
        """
        if self.carbon_intensity is not None or self.country_iso_code is None:
            return self.carbon_intensity
        return intensity_of_country(self.country_iso_code)


def intensity_of_country(code: str) -> float:
    """Carbon intensity of a country's electricity as codecarbon has it on the disk, g CO2e/kWh."""
    if find_spec("codecarbon") is None:
        raise InputError(
            "country_iso_code: codecarbon is not installed; pip install "
            "'bert-recipes[emissions]', or give --power_watts and "
            "--carbon_intensity"
        )
    from codecarbon.input import DataSource

    countries = DataSource().get_global_energy_mix_data()
    if code not in countries:
        hint = f"did you mean {code.upper()}?" if code.upper() in countries else _COUNTRIES
        raise InputError(f"country_iso_code is '{code}'; {hint}")
    return float(countries[code]["carbon_intensity"])


class CostMeter:
    """Hours, energy and CO2 of a run: those of its parts before, as the checkpoint says, and of
    this one, the `with` block.

    What a process computed after its last checkpoint and before it was killed is in no sum: that
    work is lost.
    """

    def __init__(self, args: Any) -> None:
        self.args, self.settings = args, args.energy
        self._before: Mapping[str, Any] = {}
        self._since: float | None = None
        self._seconds = 0.0
        self._tracker: Any = None
        self._last: Any = None  # codecarbon's newest totals

    def __enter__(self) -> None:
        self._before, self._seconds, self._last = {}, 0.0, None
        self._since = time.perf_counter()
        # codecarbon measures a machine.
        is_measured = (
            self.settings.power_watts is None and self.settings.country_iso_code is not None
        )
        if is_measured and self.args.local_process_index == 0:
            self._tracker = self._make_tracker()
            self._tracker.start()

    def __exit__(self, *error: object) -> None:
        self._seconds, self._since = self._elapsed(), None
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def resume(self, before: Mapping[str, Any] | None) -> None:
        """Add what `so_far` said in a checkpoint; None for one that says nothing: then the sums are
        not complete.
        """
        self._before = before or {"is_whole": False}

    def so_far(self) -> dict[str, Any]:
        """The sums over all parts, processes and machines, JSON; every process must call it.

        `is_whole`: whether `seconds` are known from the run's first step on; `energy_seconds`: for
        which the energy is known.
        """
        from accelerate.utils import gather_object

        before, seconds = self._before, self._elapsed()
        readings = [each for each in gather_object([self._measure(seconds)]) if each is not None]
        total = {"seconds": self.seconds, "is_whole": before.get("is_whole", True)}
        if not readings and "energy_kwh" not in before:
            return total
        kwh, now = sum(energy for energy, _ in readings), [method for _, method in readings]
        total["energy_seconds"] = before.get("energy_seconds", 0.0) + (seconds if readings else 0.0)
        total["energy_kwh"] = before.get("energy_kwh", 0.0) + kwh
        # The ways of measuring of all parts, the newest values of each.
        kinds = {method.split(";")[0] for method in now}
        old = [method for method in before.get("methods", ()) if method.split(";")[0] not in kinds]
        total["methods"] = list(dict.fromkeys([*old, *now]))
        intensity = self.settings.grams_per_kilowatt_hour
        # A sum of which a part is not known is not known.
        if (intensity is not None or not readings) and (
            "energy_kwh" not in before or "co2_kg" in before
        ):
            total["co2_kg"] = before.get("co2_kg", 0.0) + kwh * (intensity or 0.0) / 1000
        return total

    @property
    def seconds(self) -> float:
        """Return the seconds of all parts of the run, up to now, in this process."""
        return self._before.get("seconds", 0.0) + self._elapsed()

    def _elapsed(self) -> float:
        return self._seconds if self._since is None else time.perf_counter() - self._since

    def _measure(self, seconds: float) -> tuple[float, str] | None:
        """KWh of this part and how they are known; None where this process measures nothing, or
        codecarbon could not.
        """
        if (watts := self.settings.power_watts) is not None:
            # It is that of all processes: the main one counts it.
            method = f"a given power draw of {watts:g} W times the hours"
            return (watts / 1000 * seconds / 3600, method) if self.args.process_index == 0 else None
        if self._tracker is not None:
            self._tracker.flush()
        last = self._last
        if last is None or not math.isfinite(last.energy_consumed):
            return None
        powers = {"CPU": last.cpu_power, "GPU": last.gpu_power, "RAM": last.ram_power}
        means = (
            " + ".join(f"{part} {watts:.1f} W" for part, watts in powers.items() if watts)
            or "no power"
        )
        method = (
            f"codecarbon {last.codecarbon_version}, tracking mode {last.tracking_mode}; on "
            f"average {means}"
        )
        return float(last.energy_consumed), method

    def _make_tracker(self) -> Any:
        """A tracker of codecarbon that writes no file and asks nobody; its methods log what goes
        wrong and raise nothing.
        """
        logging.getLogger("codecarbon").setLevel(
            logging.CRITICAL
        )  # it also speaks before it knows its own level
        from codecarbon import OfflineEmissionsTracker

        def keep(total: Any, delta: Any) -> None:
            self._last = total

        # What it calls of a BaseOutput when it is flushed or stopped.
        output = SimpleNamespace(
            out=keep, live_out=keep, task_out=lambda *_: None, exit=lambda: None
        )
        return OfflineEmissionsTracker(
            country_iso_code=self.settings.country_iso_code,
            # Whatever the user's own configuration of codecarbon says: no file, no service, no
            # lock.
            output_methods=[],
            output_handlers=[output],
            emissions_endpoint=None,
            electricitymaps_api_token=None,
            force_carbon_intensity_g_co2e_kwh=self.settings.grams_per_kilowatt_hour,
            allow_multiple_runs=True,
            measure_power_secs=15,
            api_call_interval=-1,
            tracking_mode="machine",
            log_level="critical",
        )


def cost_facts(cost: Mapping[str, Any], settings: EnergySettings) -> dict[str, Any]:
    """Return `CostMeter.so_far` as all_results.json has it: `train_seconds`,
    `train_seconds_is_whole`, `energy`.
    """
    facts: dict[str, Any] = {
        "train_seconds": round(cost["seconds"], 1),
        "train_seconds_is_whole": cost["is_whole"],
    }
    if "energy_kwh" in cost:
        energy = {
            "kwh": cost["energy_kwh"],
            "seconds": round(cost["energy_seconds"], 1),
            "co2_kg": cost.get("co2_kg"),
        }
        energy |= {"estimated_by": "; ".join(cost["methods"]), **asdict(settings)}
        energy["carbon_intensity"] = settings.grams_per_kilowatt_hour
        facts["energy"] = {name: value for name, value in energy.items() if value is not None}
    elif settings != EnergySettings():
        logger.warning(
            "codecarbon could not measure the energy of this run; all_results.json does not have it"
        )
    return facts
