"""What the user says of a model for its card; all else is read from the run. Apart from card.py,
which takes seconds to load.
"""

import re
from dataclasses import dataclass, replace

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from bert_recipes.errors import InputError, did_you_mean
from bert_recipes.settings import option
from bert_recipes.training.emissions import EnergySettings


# Source: the message with which the Hub refuses any other one, as quoted in
# github.com/huggingface/huggingface_hub/issues/4218.
_IDENTIFIERS = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear
c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0
cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl
ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1
lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr
deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3
llama4 grok2-community gemma unknown other
"""
HUB_LICENSES = frozenset(_IDENTIFIERS.split())


@dataclass
class CardArguments:
    """What no file of a run says. Kept in the run's card.yaml: a card that is written again has it
    too.
    """

    license: str | None = option(None, "licence of the model, as the Hub calls it: apache-2.0")
    license_name: str | None = option(None, "name of a licence that the Hub does not know")
    license_link: str | None = option(None, "link to its text")
    language: list[str] | None = option(None, "ISO 639 codes of the text: en de")
    name: str | None = option(None, "name of the model; default: that of repo_id or folder")
    repo_id: str | None = option(None, "owner/name of the model on the Hub")
    data_description: str | None = option(None, "what the text is, and where it is from")
    data_license: str | None = option(None, "licence of the text, in words")
    power_watts: float | None = option(
        None, "draw of all that the run used, watts, where the run did not estimate its energy"
    )
    country_iso_code: str | None = option(None, "country of the machines, three letters (DEU)")
    carbon_intensity: float | None = option(
        None, "g CO2e/kWh of the electricity; default: codecarbon's for the country"
    )

    def check(self) -> None:
        """See that the Hub would take it."""
        if self.license is not None and self.license not in HUB_LICENSES:
            hint = did_you_mean(self.license.lower().replace(" ", "-"), sorted(HUB_LICENSES))
            raise InputError(
                f"license is '{self.license}', which the Hub does not know; {hint}Another licence "
                "is given as --license other "
                "--license_name NAME --license_link LINK; identifiers: "
                "https://huggingface.co/docs/hub/repositories-licenses"
            )
        if self.license == "other" and self.license_name is None:
            raise InputError(
                "--license other needs --license_name: the name of a licence that the Hub does "
                "not know"
            )
        if self.license != "other" and (
            self.license_name is not None or self.license_link is not None
        ):
            raise InputError(
                "license_name and license_link belong to --license other; give it too, or leave "
                "them out"
            )
        for code in self.language or ():
            if not re.fullmatch(r"[a-z]{2,3}", code) and code not in ("multilingual", "code"):
                raise InputError(
                    f"language is '{code}'; allowed: two or three small letters of ISO 639 (en, "
                    "de, gsw), multilingual, code"
                )
        if self.repo_id is not None:
            try:
                validate_repo_id(self.repo_id)
            except HFValidationError as error:
                raise InputError(f"repo_id: {error}") from error

    @property
    def energy(self) -> EnergySettings:
        """What is said of the energy."""
        return EnergySettings(self.power_watts, self.country_iso_code, self.carbon_intensity)

    def merge(self, before: "CardArguments") -> "CardArguments":
        """These, and where nothing is given what was given before."""
        if self.country_iso_code is not None:  # the intensity before was the other country's
            before = replace(before, carbon_intensity=None)
        if self.license is not None:
            before = replace(before, license_name=None, license_link=None)
        return replace(
            before, **{name: value for name, value in vars(self).items() if value is not None}
        )
