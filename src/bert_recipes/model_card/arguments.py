"""What the user says of a model for its card; all else is read from the run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from bert_recipes.emissions import EnergySettings
from bert_recipes.errors import InputError
from bert_recipes.model_card.licenses import check_license


@dataclass
class CardArguments:
    """What no file of a run says. Kept in the run's card.yaml: a card that is written again has it too."""

    license: str | None = field(
        default=None, metadata={"help": "licence of the model, as the Hub calls it: apache-2.0"}
    )
    license_name: str | None = field(default=None, metadata={"help": "name of a licence that the Hub does not know"})
    license_link: str | None = field(default=None, metadata={"help": "link to its text"})
    language: list[str] | None = field(default=None, metadata={"help": "ISO 639 codes of the text: en de"})
    name: str | None = field(default=None, metadata={"help": "name of the model; default: that of repo_id or folder"})
    repo_id: str | None = field(default=None, metadata={"help": "owner/name of the model on the Hub"})
    data_description: str | None = field(default=None, metadata={"help": "what the text is, and where it is from"})
    data_license: str | None = field(default=None, metadata={"help": "licence of the text, in words"})
    power_watts: float | None = field(
        default=None,
        metadata={"help": "draw of all that the run used, watts, where the run did not estimate its energy"},
    )
    country_iso_code: str | None = field(
        default=None, metadata={"help": "country of the machines, three letters (DEU)"}
    )
    carbon_intensity: float | None = field(
        default=None, metadata={"help": "g CO2e/kWh of the electricity; default: codecarbon's for the country"}
    )

    def check(self) -> None:
        """See that the Hub would take it."""
        if self.license is not None:
            check_license(self.license, self.license_name, self.license_link)
        elif self.license_name is not None or self.license_link is not None:
            raise InputError("license_name and license_link belong to --license other; give it too")
        for code in self.language or ():
            if not re.fullmatch(r"[a-z]{2,3}", code) and code not in ("multilingual", "code"):
                raise InputError(
                    f"language is '{code}'; allowed: two or three small letters of ISO 639 (en, de, gsw), multilingual, code"
                )
        if self.repo_id is not None:
            try:
                validate_repo_id(self.repo_id)
            except HFValidationError as error:
                raise InputError(f"repo_id: {error}") from error
        for field_name in ("name", "data_description", "data_license"):
            text = getattr(self, field_name)
            if text is not None and not text.strip():
                raise InputError(f"{field_name} is empty; leave it out")

    @property
    def energy(self) -> EnergySettings:
        """What is said of the energy."""
        return EnergySettings(self.power_watts, self.country_iso_code, self.carbon_intensity)

    def over(self, before: CardArguments) -> CardArguments:
        """These, and where nothing is given what was given before."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.country_iso_code is not None:  # the intensity before was the other country's
            before = replace(before, carbon_intensity=None)
        if self.license is not None:
            before = replace(before, license_name=None, license_link=None)
        return replace(before, **{name: value for name, value in given.items() if value is not None})
