"""README.md of a run: put together, written, and never over what somebody has edited."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from bert_recipes.bias_probe import refresh_probe
from bert_recipes.config import save_config
from bert_recipes.config_file import read_flat_yaml
from bert_recipes.emissions import intensity_of_country
from bert_recipes.errors import InputError, saving
from bert_recipes.field_types import field_types
from bert_recipes.model_card import finetuning_sections, pretraining_sections
from bert_recipes.model_card.arguments import CardArguments
from bert_recipes.model_card.bias_section import bias_lines
from bert_recipes.model_card.energy_section import check_energy
from bert_recipes.model_card.facts import GIVEN, RESULTS, RunFiles, code
from bert_recipes.model_card.layout import Lines, section
from bert_recipes.model_card.metadata import card_data
from bert_recipes.model_card.shared_sections import compute_section, model_section, title, tokenizer_section
from bert_recipes.model_card.usage import usage_section
from bert_recipes.own_card import CARD_FILE, HASH_KEY, TRACE_FILE, hash_of_card, is_own_card
from bert_recipes.whole_files import write_json, written_aside


logger = logging.getLogger(__name__)


def write_card(folder: str | Path, given: CardArguments | None = None, *, overwrite: bool = False) -> Path:
    """Write the card of a finished run from the run's own files, and what the user says of the model beside it.

    Leaves README.md, card.yaml (what the user said, now or before) and card_facts.json: for each fact of the card the files
    and keys that it is from, and the hash of the card, by which an edited one is known.

    Args:
        folder: Of the run.
        given: What no file of the run says; what is None is taken from the run's card.yaml.
        overwrite: Also over a README.md that somebody has edited, or that was not written by this function.

    Returns:
        The card's path.
    """
    folder = Path(folder)
    given = given or CardArguments()
    said = _resolved(given.over(_read_given(folder)), check_card(folder, given, overwrite=overwrite))
    with saving(folder):
        if said != CardArguments():
            save_config(folder / GIVEN, said)
        files = RunFiles(folder)
        path = folder / CARD_FILE
        text = card_text(files)
        with written_aside(path) as aside:
            aside.write_text(text, encoding="utf-8", newline="\n")
        # Last: a card without it counts as edited.
        write_json(folder / TRACE_FILE, {HASH_KEY: hash_of_card(folder), "facts": _trace(files)})
    return path


def check_card(folder: str | Path, given: CardArguments | None = None, *, overwrite: bool = False) -> RunFiles:
    """See that a card can be written; takes no time.

    Args:
        folder: As for `write_card`.
        given: As well.
        overwrite: As well.

    Returns:
        The run's files.
    """
    folder = Path(folder)
    files = RunFiles(folder)
    if not overwrite and not is_own_card(folder):
        raise InputError(
            f"{folder / CARD_FILE} was edited, or not written by this project, so it is left as it is; move it away, or write it "
            "anew with --overwrite true"
        )
    _resolved((given or CardArguments()).over(_read_given(folder)), files)
    return files


def write_card_of_run(folder: Path) -> list[Path]:
    """Probe and `write_card` at the end of a run, which a card that cannot be written does not make fail: a warning says why.

    Args:
        folder: The run's output_dir, all other files written.

    Returns:
        The card; nothing where it could not be written.
    """
    try:
        files = check_card(folder)
        if not files.is_fine_tuned and files.is_english:
            # Under DeepSpeed's stage 3 all processes would have to open the model together; here one does it alone.
            unset_hf_deepspeed_config()
            refresh_probe(folder)
        return [write_card(folder)]
    except (InputError, OSError) as error:
        logger.warning("no model card is written: %s", error)
    except Exception:
        # A mistake of ours: the run is whole all the same, and other processes wait for this one.
        logger.exception("no model card is written; the run itself is finished and whole")
    return []


def name_repository(folder: Path, repo_id: str) -> None:
    """Before a finished run is pushed: let its card load the model from there, wherever it was pushed before.

    A card that somebody has edited, or that another program wrote, stays as it is, with a warning where it names the repository
    of an earlier push; one that cannot be written is a warning.

    Args:
        folder: Any model's.
        repo_id: owner/name.
    """
    if not all((folder / name).is_file() for name in (CARD_FILE, TRACE_FILE)):
        return
    try:
        files = RunFiles(folder)
        known = files.value(*files.repository) if files.repository else None
        if known == repo_id:
            return
        if is_own_card(folder):
            write_card(folder, CardArguments(repo_id=repo_id))
        elif known is not None and _names(folder / CARD_FILE, known):
            logger.warning(
                '%s was edited and stays: it says that the model is %s, not %s; `make card RUN=%s ARGS="--repo_id %s --overwrite true"` '
                "writes it anew",
                *(folder / CARD_FILE, known, repo_id, folder, repo_id),
            )
    except InputError as error:
        logger.warning("the model card does not say that the model is %s: %s", repo_id, error)


def _names(card: Path, repo_id: str) -> bool:
    """Whether a card speaks of a repository, and not only of one whose name begins like that."""
    text = card.read_text(encoding="utf-8", errors="replace")
    return re.search(rf"(?<![\w./-]){re.escape(repo_id)}(?!\.?[\w-])", text) is not None


def card_text(files: RunFiles) -> str:
    """The whole card: the head for the Hub, and the sections about which the run says something."""
    kind: Any = finetuning_sections if files.is_fine_tuned else pretraining_sections
    name = title(files)
    body = [f"# {name}", "", *kind.introduction(files), "", *_origin(), ""]
    for lines in (
        usage_section(files),
        kind.results_section(files),
        kind.data_section(files),
        tokenizer_section(files),
        model_section(files),
        kind.training_section(files),
        compute_section(files),
        _limits(files, kind),
        section("Licence", _licence(files)),
    ):
        body += lines
    text = "\n".join(["---", card_data(files, str(name)).to_yaml(), "---", "", *body]).rstrip() + "\n"
    return str(ModelCard(text))


def _origin() -> Lines:
    return [
        f"Written by bert-recipes from the files of the run: `{TRACE_FILE}` names file and key of every figure. Commands",
        "run in the repository of bert-recipes; in them `MODEL` is the path of this folder, and other words in capitals",
        "stand for what the tables describe.",
    ]


def _limits(files: RunFiles, kind: Any) -> Lines:
    probe = [] if files.is_fine_tuned else bias_lines(files)
    return section("Limits and bias", kind.limits(files), probe)


def _licence(files: RunFiles) -> Lines:
    identifier = files.fact("licence", GIVEN, "license", code)
    name, link = (
        files.fact("licence's name", GIVEN, "license_name"),
        files.fact("licence's link", GIVEN, "license_link"),
    )
    words = [str(fact) for fact in (identifier, name, link) if fact is not None]
    return [", ".join(words)] if words else []


def _trace(files: RunFiles) -> list[dict[str, Any]]:
    """Every fact once."""
    return [asdict(fact) for fact in dict.fromkeys(files.facts)]


# What the user says


def _read_given(folder: Path) -> CardArguments:
    """What was said before."""
    file = folder / GIVEN
    if not file.is_file():
        return CardArguments()
    return CardArguments(**read_flat_yaml(file, field_types(CardArguments)))


def _resolved(said: CardArguments, files: RunFiles) -> CardArguments:
    """Checked; the carbon intensity of a country is looked up where the CO2 is reckoned for the card."""
    said.check()
    check_energy(files, said.energy)
    reckons = said.power_watts is not None or files.value(RESULTS, "energy/kwh") is not None
    known = files.value(RESULTS, "energy/co2_kg") is not None or said.carbon_intensity is not None
    if said.country_iso_code is not None and reckons and not known:
        return replace(said, carbon_intensity=intensity_of_country(said.country_iso_code))
    return said
