"""The licences that the Hub knows, by its identifiers."""

from __future__ import annotations

import difflib

from bert_recipes.errors import InputError


# Source: the message with which the Hub refuses any other one, as quoted in github.com/huggingface/huggingface_hub/issues/4218.
_IDENTIFIERS = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl
lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0
openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
other
"""
HUB_LICENSES = frozenset(_IDENTIFIERS.split())


def check_license(identifier: str, name: str | None, link: str | None) -> None:
    """Refuse what the Hub would refuse.

    Args:
        identifier: As the card's `license`.
        name: Of a licence that the Hub does not know, as the card's `license_name`.
        link: To its text, as the card's `license_link`.

    Raises:
        InputError: An unknown identifier (the nearest is given), `other` without a name, or a name or a link
            without `other`.
    """
    if identifier not in HUB_LICENSES:
        near = difflib.get_close_matches(identifier.lower().replace(" ", "-"), sorted(HUB_LICENSES), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"license is '{identifier}', which the Hub does not know; {hint}Another licence is given as --license other "
            "--license_name NAME --license_link LINK; identifiers: https://huggingface.co/docs/hub/repositories-licenses"
        )
    if identifier == "other" and name is None:
        raise InputError("--license other needs --license_name: the name of a licence that the Hub does not know")
    if identifier != "other" and (name is not None or link is not None):
        raise InputError(
            f"license_name and license_link belong to --license other, not to {identifier}; leave them out"
        )
