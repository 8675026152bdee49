"""Energy and CO2 of a run: always named an estimate, with how it was made; nothing where nothing was given."""

from __future__ import annotations

from typing import Any

from bert_recipes.emissions import EnergySettings
from bert_recipes.errors import InputError
from bert_recipes.model_card.facts import GIVEN, RESULTS, Fact, RunFiles, Show, hours, significant
from bert_recipes.model_card.layout import Lines, facts_table


_SECONDS_AN_HOUR, _WATTS_A_KILOWATT, _GRAMS_A_KILOGRAM = 3600.0, 1000.0, 1000.0


def energy_lines(files: RunFiles) -> Lines:
    """The estimate as a table."""
    kwh, how = energy(files)
    if kwh is None:
        return []
    share = files.derived(
        "hours with an estimate",
        [(RESULTS, "energy/seconds"), (RESULTS, "train_seconds")],
        lambda known, total: hours(known) if known < 0.99 * total else None,
    )
    if share is None and not hours_are_whole(files):
        key = "energy/seconds" if files.value(RESULTS, "energy/kwh") is not None else "train_seconds"
        share = files.fact("hours with an estimate", RESULTS, key, hours)
    rows: list[tuple[str, Any]] = [
        ("energy, kWh (an estimate)", kwh),
        ("CO2 equivalent, g (an estimate)", co2_grams(files)),
        ("how the energy was estimated", how),
        ("carbon intensity of the electricity, g/kWh", carbon_intensity(files)),
        ("country", files.fact("country", *_place(files, "country_iso_code"))),
        ("hours that the estimate covers", share),
    ]
    return facts_table(rows)


def hours_are_whole(files: RunFiles) -> bool:
    """Whether the hours of training are those of all parts of the run."""
    known = files.value(RESULTS, "train_seconds_is_whole")
    # Runs of older versions do not say; what they give of one that was resumed is its last part.
    return bool(known) if known is not None else files.value(RESULTS, "resumed_at_step") is None


def energy(files: RunFiles) -> tuple[Fact | None, Fact | None]:
    """Kilowatt-hours and how they were estimated: by the run, or by the power that the user gives for the card."""
    if files.value(RESULTS, "energy/kwh") is not None:
        return files.fact("energy", RESULTS, "energy/kwh", significant), files.fact(
            "how the energy was estimated", RESULTS, "energy/estimated_by"
        )
    sources = [(GIVEN, "power_watts"), (RESULTS, "train_seconds")]
    kwh = files.derived("energy", sources, lambda watts, seconds: significant(_kilowatt_hours(watts, seconds)))
    how = files.fact(
        "how the energy was estimated",
        GIVEN,
        "power_watts",
        lambda watts: f"a given power draw of {float(watts):g} W times the hours",
    )
    return kwh, how


def co2_grams(files: RunFiles, show: Show | None = None) -> Fact | None:
    """Grams of CO2 equivalent."""
    shown = show or significant
    if files.value(RESULTS, "energy/co2_kg") is not None:
        return files.fact("CO2", RESULTS, "energy/co2_kg", lambda kg: shown(kg * _GRAMS_A_KILOGRAM))
    place = _place(files, "carbon_intensity")
    if files.value(RESULTS, "energy/kwh") is not None:
        return files.derived("CO2", [(RESULTS, "energy/kwh"), place], lambda kwh, grams: shown(kwh * float(grams)))
    return files.derived(
        "CO2",
        [(GIVEN, "power_watts"), (RESULTS, "train_seconds"), place],
        lambda watts, seconds, grams: shown(_kilowatt_hours(watts, seconds) * float(grams)),
    )


def carbon_intensity(files: RunFiles) -> Fact | None:
    """Grams a kilowatt-hour that CO2 was reckoned with."""
    return files.fact("carbon intensity", *_place(files, "carbon_intensity"))


def _place(files: RunFiles, name: str) -> tuple[str, str]:
    """Where a setting of the energy stands: the run's own wins."""
    return (RESULTS, f"energy/{name}") if files.value(RESULTS, f"energy/{name}") is not None else (GIVEN, name)


def _kilowatt_hours(watts: Any, seconds: float) -> float:
    return float(watts) / _WATTS_A_KILOWATT * seconds / _SECONDS_AN_HOUR


def check_energy(files: RunFiles, settings: EnergySettings) -> None:
    """See that what is said of the energy fits the run.

    Raises:
        InputError: The run has estimated it itself, or something is missing.
    """
    known = files.value(RESULTS, "energy/kwh") is not None
    if known and settings.power_watts is not None:
        raise InputError(
            f"power_watts: the run has estimated its energy itself ({files.folder / RESULTS}); leave it out, or take it out of "
            "card.yaml"
        )
    if settings != EnergySettings() and not known and settings.power_watts is None:
        raise InputError(
            f"country_iso_code and carbon_intensity: {files.folder / RESULTS} has no estimate of the energy that they could be "
            "used with; give --power_watts too"
        )
    settings.check(has_energy=True)
