"""Energy of a run: its settings, read where nothing heavy is imported."""

import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from bert_recipes.errors import InputError


_EXTRA = "pip install 'bert-recipes[emissions]'"
_COUNTRIES = "allowed: three letters of ISO 3166-1, for example DEU, USA, FRA"


@dataclass(frozen=True)
class EnergySettings:
    """How the energy of a run is estimated; nothing given: not at all. Watts, ISO 3166-1 alpha-3, g CO2e/kWh."""

    power_watts: float | None = None
    country_iso_code: str | None = None
    carbon_intensity: float | None = None

    def check(self, *, has_energy: bool = False) -> None:
        """See that the settings can be followed; `has_energy`: the energy is known already."""
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
    def grams_per_kilowatt_hour(self) -> float | None:
        """Carbon intensity: the one given, else that of the country; None where neither is known."""
        if self.carbon_intensity is not None or self.country_iso_code is None:
            return self.carbon_intensity
        return intensity_of_country(self.country_iso_code)

    def describe(self) -> dict[str, Any]:
        """The settings and what they come to, for all_results.json; what is not known is left out."""
        facts = {
            "power_watts": self.power_watts,
            "country_iso_code": self.country_iso_code,
            "carbon_intensity": self.grams_per_kilowatt_hour,
        }
        return {name: value for name, value in facts.items() if value is not None}


def intensity_of_country(code: str) -> float:
    """Carbon intensity of a country's electricity as codecarbon has it on the disk, g CO2e/kWh."""
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
