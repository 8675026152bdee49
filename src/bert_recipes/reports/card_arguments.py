"""The settings of a card: what the user says of a model; all else is read from the run.

It stands apart from card.py, which takes seconds to load.
"""

import re
from dataclasses import dataclass, replace

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from bert_recipes.errors import InputError
from bert_recipes.settings import option


@dataclass
class CardArguments:
    """Hold what no file of a run says.

    Kept in the run's card.yaml: a card that is written again has it too.
    """

    license: str | None = option(None, "licence of the model, by its name on the Hub: apache-2.0")
    license_name: str | None = option(None, "name of a licence that the Hub does not know")
    license_link: str | None = option(None, "link to its text")
    language: list[str] | None = option(None, "ISO 639 codes of the text: en de")
    name: str | None = option(None, "name of the model; default: that of repo_id or folder")
    repo_id: str | None = option(None, "owner/name of the model on the Hub")
    data_description: str | None = option(None, "what the text is, and where it is from")
    data_license: str | None = option(None, "licence of the text, in words")
    tags: list[str] | None = option(None, "further tags of the model on the Hub")
    examples: bool | None = option(
        None, "show three held-out texts with predictions; default: true"
    )

    def check(self) -> None:
        """Check what can be checked without the Hub, which validates the card when it is pushed."""
        is_other = self.license == "other"
        has_name = self.license_name is not None
        if is_other != has_name or (self.license_link is not None and not is_other):
            raise InputError(
                "a licence that the Hub does not know is given as --license other --license_name "
                "NAME --license_link LINK"
            )
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license):
            raise InputError(
                f"license is '{self.license}'; allowed: a name of the Hub, in small letters "
                "(apache-2.0, cc-by-sa-4.0), or other"
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

    def merge(self, earlier: "CardArguments") -> "CardArguments":
        """Return these arguments, completed by those that were given earlier."""
        if self.license is not None:
            earlier = replace(earlier, license_name=None, license_link=None)
        changes = {name: value for name, value in vars(self).items() if value is not None}
        return replace(earlier, **changes)
