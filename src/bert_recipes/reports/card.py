"""The model card: README.md of a run by one template, from the run's own files and what the user
says of the model.

A card ends with the hash of its text: one that somebody has edited is known by it and is never
written over.
"""

import dataclasses
import html
import json
import logging
import math
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import (
    EvalResult,
    EvalResultEntry,
    ModelCard,
    ModelCardData,
    eval_result_entries_to_yaml,
    get_local_safetensors_metadata,
)
from huggingface_hub.errors import NotASafetensorsRepoError
from jinja2 import ChainableUndefined, Undefined
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from bert_recipes.checkpointing import CARD_FILE, EVAL_FILE, is_generated_card, seal_card
from bert_recipes.config import field_types, read_flat_yaml, save_config
from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write, hash_of
from bert_recipes.hub_access import is_hub_name
from bert_recipes.models.inspection import knows_words
from bert_recipes.reports.bias_probe import BASELINE, PROBE_FILE, refresh_probe
from bert_recipes.reports.card_arguments import CardArguments
from bert_recipes.reports.facts import read_object, read_run
from bert_recipes.reports.page import environment_of, is_cost, is_no_better
from bert_recipes.tasks.task import Task, split_suffixes, with_suffix
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DataArguments, has_second_phase, key_in_last_phase
from bert_recipes.training.bert_trainer import MEASURED_WITH
from bert_recipes.training.callbacks import STUCK_MARGIN_NATS
from bert_recipes.training.emissions import EnergySettings, intensity_of_country
from bert_recipes.training.resume import CONFIG_FILE, RESULTS_FILE


logger = logging.getLogger(__name__)

# What the user says of the model.
GIVEN_FILE = "card.yaml"
MODEL_FILE, VOCABULARY_FILE = "config.json", "vocab.txt"
# A fifth of English prose and few words of any other language; ours, as the fraction that is asked
# for.
_ENGLISH, _ENGLISH_FRACTION = (
    {"the", "of", "and", "to", "that", "is", "with", "this", "not", "it", "was"},
    0.1,
)
# Sentences for the example of an English model, where the tokenizer knows their words.
_SENTENCES = {
    "masked": ("He opened the [MASK] and went into the room.", "Return the [MASK] of the list."),
    "first": ("The weather is fine today.", "Return the number of items in the list."),
    "second": ("It has not rained for a week.", "If the list is empty, zero is returned."),
}
# Our choice: a model that gives the two pronouns less than this in most of the sentences does not
# take the position for theirs.
EXPECTED = 0.01
# Ours too: an occupation with less for both together has no row, and with less between the least
# and the greatest P(she) the occupation says nothing.
SHOWN, DIFFERENT = 0.001, 0.05


class RunCard:
    """What a card is made of: the files of a finished run."""

    def __init__(self, folder: Path) -> None:
        files = read_run(folder)
        for name in (CONFIG_FILE, MODEL_FILE):
            if not (folder / name).is_file():
                raise InputError(f"{folder} has no {name}: it is no run of this project")
        self.folder, self.folder_name, self.task = folder, files.name, files.task
        self.run, self.results, self.facts = files.settings, files.results, files.facts
        self.model, self.probe = read_object(folder / MODEL_FILE), read_object(folder / PROBE_FILE)
        file = folder / GIVEN_FILE
        self.given = CardArguments(
            **(read_flat_yaml(file, field_types(CardArguments)) if file.is_file() else {})
        )

    @cached_property
    def is_english(self) -> bool:
        """Whether English is put to the model: by what the user says, else by its held-out text;
        else, of a task, True.
        """
        if self.given.language is not None:
            return "en" in self.given.language
        held_out = self.facts.get("held_out") or {}
        examples = [each for name in ("masks", "verdicts") for each in held_out.get(name) or ()]
        parts = [
            str(each.get(name, ""))
            for each in examples
            for name in ("before", "after", "first", "second")
        ]
        words = [word for word in " ".join(parts).lower().split() if word.isalpha()]
        known = sum(word in _ENGLISH for word in words)
        return known >= _ENGLISH_FRACTION * len(words) if words else self.task is not None

    @property
    def repository(self) -> str | None:
        """The model's name on the Hub, whose model on main it is: not of a run that pushes to a
        branch.
        """
        is_pushed = self.run.get("push_to_hub") == "true" and self.run.get("hub_revision") in (
            None,
            "main",
        )
        return self.given.repo_id or (self.run.get("hub_model_id") if is_pushed else None)

    @property
    def name(self) -> str:
        """As it was given, that of the repository, or of the folder."""
        repository = self.repository and self.repository.rpartition("/")[2]
        return str(as_text(self.given.name) or repository or as_text(self.folder_name))

    @property
    def pipeline(self) -> str:
        """The Hub's word for what the model does."""
        # ELECTRA's discriminator predicts no tokens, TinyBERT's head has learned nothing, and a
        # left-to-right model knows no mask.
        has_mask = self.model.get("model_type") != "electra" and self.run.get("objective") not in (
            "tinybert",
            "ltr",
        )
        kind = self.task.kind if self.task else "fill-mask" if has_mask else "feature-extraction"
        return (
            "text-classification" if kind == "sequence_classification" else kind.replace("_", "-")
        )

    @property
    def from_hub(self) -> bool:
        """Whether the examples were read from the task's data set on the Hub."""
        sources = [
            str(split.get("source")) for split in (self.results.get("splits") or {}).values()
        ]
        return bool(sources) and all(source.startswith("Hub data set ") for source in sources)

    @cached_property
    def weights(self) -> dict[str, Any]:
        """Parameters, types and bytes of the weights, and the hash of a single file; empty where
        they are gone.
        """
        try:
            found = get_local_safetensors_metadata(self.folder)
        except NotASafetensorsRepoError:
            return {}
        files = [self.folder / name for name in found.files_metadata]
        return {
            "parameters": sum(found.parameter_count.values()),
            "types": ", ".join(sorted(found.parameter_count)),
            "bytes": sum(file.stat().st_size for file in files),
            "sha256": None if found.sharded else hash_of(files[0]),
        }

    @cached_property
    def metrics(self) -> list[tuple[str, str, str]]:
        """(split, metric, key in all_results.json) of every result of a task."""
        if self.task is None:
            return []
        prefixes = {}
        for start, kind, splits in (
            ("eval_", "validation", self.task.validation_splits),
            ("test_", "test", self.task.test_splits),
        ):
            for suffix, split in zip(split_suffixes(splits, kind), splits, strict=True):
                prefixes[start + (with_suffix(suffix, "") if suffix else "")] = split
        found = []
        for key, value in self.results.items():
            # The longest: the one of a split without a suffix fits every name.
            prefix = max(
                (prefix for prefix in prefixes if key.startswith(prefix)), key=len, default=None
            )
            if prefix is not None and isinstance(value, int | float) and not is_cost(key):
                found.append((prefixes[prefix], key.removeprefix(prefix), key))
        return found


# Writing


def write_card(
    folder: str | Path, given: CardArguments | None = None, *, overwrite: bool = False
) -> Path:
    """Write the card of a finished run, its result as the Hub reads it, and what the user said, now
    or before (`given` comes first).
    """
    card = check_card(folder, given, overwrite=overwrite)
    with saving(card.folder):
        if card.given != CardArguments():
            save_config(card.folder / GIVEN_FILE, card.given)
        text = seal_card(card_text(card))
        with atomic_write(card.folder / CARD_FILE) as aside:
            aside.write_text(text, encoding="utf-8", newline="\n")
        file, results = card.folder / EVAL_FILE, hub_results(card)
        file.unlink(missing_ok=True)
        if results:
            file.parent.mkdir(exist_ok=True)
            file.write_text(yaml.safe_dump(results, sort_keys=False), encoding="utf-8")
    return card.folder / CARD_FILE


def check_card(
    folder: str | Path, given: CardArguments | None = None, *, overwrite: bool = False
) -> RunCard:
    """See that a card can be written, and what is said of the model, now and before; takes no
    time.
    """
    card = RunCard(Path(folder))
    if not overwrite and not is_generated_card(card.folder):
        raise InputError(
            f"{card.folder / CARD_FILE} was edited, or not written by this project, so it is left "
            "as it is; move it away, or "
            "write it again with --overwrite true"
        )
    said = card.given = (given or CardArguments()).merge(card.given)
    said.check()
    energy, results = card.results.get("energy") or {}, card.folder / RESULTS_FILE
    is_known = energy.get("kwh") is not None
    if is_known and said.power_watts is not None:
        raise InputError(
            f"power_watts: the run has estimated its energy itself ({results}); leave it out, or "
            "take it out of card.yaml"
        )
    if said.energy != EnergySettings() and not is_known and said.power_watts is None:
        raise InputError(
            f"country_iso_code and carbon_intensity: {results} has no estimate of the energy that "
            "they could be used with; "
            "give --power_watts too"
        )
    said.energy.check(has_energy=True)
    if (
        said.country_iso_code is not None
        and said.carbon_intensity is None
        and energy.get("co2_kg") is None
    ):
        card.given = dataclasses.replace(
            said, carbon_intensity=intensity_of_country(said.country_iso_code)
        )
    return card


def write_card_of_run(folder: Path) -> list[Path]:
    """Probe and `write_card` at the end of a run, which a card that cannot be written does not make
    fail: a warning says why.
    """
    try:
        card = check_card(folder)
        if card.pipeline == "fill-mask" and card.is_english:
            # Under DeepSpeed's stage 3 all processes would have to open the model together; here
            # one does it alone.
            unset_hf_deepspeed_config()
            refresh_probe(folder)
        return [write_card(folder)]
    except (InputError, OSError) as error:
        logger.warning("no model card is written: %s", error)
    except Exception:
        # A mistake of ours: the run is complete all the same, and other processes wait for this
        # one.
        logger.exception("no model card is written; the run itself is finished and complete")
    return []


def name_repository(folder: Path, repo_id: str) -> None:
    """Before a finished run is pushed: let its card load the model from there; one that was edited
    stays, with a warning.
    """
    if not all(
        (folder / name).is_file() for name in (CARD_FILE, CONFIG_FILE, RESULTS_FILE, MODEL_FILE)
    ):
        return
    try:
        known = RunCard(folder).repository
        if known == repo_id:
            return
        text = (folder / CARD_FILE).read_text(encoding="utf-8", errors="replace")
        if is_generated_card(folder):
            write_card(folder, CardArguments(repo_id=repo_id))
        elif known is not None and re.search(rf"(?<![\w./-]){re.escape(known)}(?!\.?[\w-])", text):
            logger.warning(
                "%s was edited and stays: it says that the model is %s, not %s; `make card RUN=%s "
                'ARGS="--repo_id %s --overwrite true"` '
                "writes it again",
                *(folder / CARD_FILE, known, repo_id, folder, repo_id),
            )
    except InputError as error:
        logger.warning("the model card does not say that the model is %s: %s", repo_id, error)


def card_text(card: RunCard) -> str:
    """The complete card: the head for the Hub, and the sections about which the run says
    something.
    """
    run, vocabulary = card.run, card.folder / VOCABULARY_FILE
    tokenizer, base = run.get("tokenizer"), card.results.get("base_model") or {}
    environment = environment_of("md").overlay(undefined=ChainableUndefined)
    formats: dict[str, Callable[..., str | None]] = {
        "text": as_text,
        "f": formatted,
        "digits": digits,
        "code": code,
    }
    # Not in place: an overlay shares the filters.
    environment.filters = environment.filters | {
        name: _of_known(format) for name, format in formats.items()
    }
    text = environment.get_template("card.md.j2").render(
        card=card,
        **{name: getattr(card, name) for name in ("run", "results", "model", "task", "weights")},
        head=card_data(card).to_yaml(),
        given={name: as_text(value) for name, value in vars(card.given).items()},
        tokenizer=read_object(card.folder / "tokenizer_config.json"),
        vocabulary=vocabulary.is_file()
        and {"sha256": hash_of(vocabulary), "lines": len(vocabulary.read_bytes().splitlines())},
        example=lambda kind: _example(card, kind),
        energy=_energy(card),
        probe=_probe(card),
        has_second_phase=has_second_phase(run),
        longest=run.get(key_in_last_phase(run, "max_seq_length")),
        is_no_better=card.task is not None and is_no_better(card.results, card.task.best_metric),
        stuck=STUCK_MARGIN_NATS,
        measured_with=_measured_with(card),
        has_own_tokenizer=tokenizer is not None
        and (Path(tokenizer).exists() or not is_hub_name(tokenizer)),
        has_own_base=run.get("model_name_or_path") is not None
        and base.get("is_local") is not False,
    )
    lines = [line.rstrip() for line in text.splitlines()]
    return str(ModelCard(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"))


# Values as text


def _of_known(format: Callable[..., str | None]) -> Callable[..., str | None]:
    """None for a value that is missing, or empty as text: a row with it is left out."""

    @wraps(format)
    def known(value: Any, *more: Any) -> str | None:
        return (
            None if value is None or isinstance(value, Undefined) else format(value, *more) or None
        )

    return known


def as_text(value: Any) -> str | None:
    """A text as it was written, a count with its thousands, a list with commas; nothing of what is
    empty.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(text for item in value if (text := as_text(item))) or None
    return _cell(html.escape(str(value), quote=False))


def formatted(value: Any, style: str = ",.0f") -> str | None:
    """A finite number, also where YAML has it as a text, by default as a count; None for anything
    else.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return format(number, style) if math.isfinite(number) else None


def digits(value: float) -> str:
    """A number with as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def code(value: Any) -> str:
    """A word of a file or a setting, which may hold a backtick itself."""
    text = _cell(str(value))
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    """A text that neither ends a cell of a table nor the line."""
    return " ".join(text.replace("|", "\\|").split())


# What the sections need beside the files


def _example(card: RunCard, kind: str) -> str:
    """A text as a Python string: English where that is the model's, else held out, else words of
    the tokenizer.
    """
    tokenizer = load_tokenizer(card.folder)
    for text in _SENTENCES[kind] if card.is_english else ():
        if knows_words(tokenizer, text):
            return json.dumps(text.replace("[MASK]", str(tokenizer.mask_token)))
    verdicts = (card.facts.get("held_out") or {}).get("verdicts") or [{}]
    for name in ("second", "first") if kind == "masked" else ():
        words = str(verdicts[0].get(name) or "").split()[:12]
        if len(words) > 1:
            words[words.index(max(words, key=len))] = str(tokenizer.mask_token)
            return json.dumps(" ".join(words), ensure_ascii=False)
    vocabulary = tokenizer.get_vocab()
    words = [
        piece
        for piece in vocabulary
        if piece.isalpha() and piece not in tokenizer.all_special_tokens
    ]
    words = sorted(words, key=lambda word: (len(word) < 2, vocabulary[word]))[:4]
    words[1:1] = [str(tokenizer.mask_token)] if kind == "masked" else []
    return json.dumps(" ".join(words), ensure_ascii=False)


def _energy(card: RunCard) -> dict[str, Any]:
    """As the run has estimated it, or by the power that the user gives."""
    results, given = card.results, card.given
    known, seconds = results.get("energy") or {}, results.get("train_seconds")
    intensity = known.get("carbon_intensity", given.carbon_intensity)
    # Runs of older versions do not say whether the hours are those of all parts; of one that was
    # resumed they are the last part's.
    is_complete = results.get("train_seconds_is_whole")
    is_complete = results.get("resumed_at_step") is None if is_complete is None else is_complete
    found = {
        "intensity": intensity,
        "country": known.get("country_iso_code", given.country_iso_code),
        "is_complete": is_complete,
    }
    if known.get("kwh") is not None:
        kwh, how, covered = known["kwh"], known.get("estimated_by"), known.get("seconds")
        is_part = not is_complete or (
            covered is not None and seconds is not None and covered < 0.99 * seconds
        )
    elif given.power_watts is not None and seconds is not None:
        kwh, covered, is_part = given.power_watts / 1000 * seconds / 3600, seconds, not is_complete
        how = f"a given power draw of {given.power_watts:g} W times the hours"
    else:
        return found
    kilograms = known.get("co2_kg")
    grams = (
        kilograms * 1000
        if kilograms is not None
        else None
        if intensity is None
        else kwh * float(intensity)
    )
    return found | {"kwh": kwh, "grams": grams, "how": how, "covered": covered if is_part else None}


def _probe(card: RunCard) -> dict[str, Any]:
    rows = card.probe.get("rows")
    if card.task is not None or not rows or not card.is_english:
        return {}
    # Of weights in several files neither is known.
    if card.probe.get("weights_sha256") != card.weights.get("sha256"):
        logger.warning(
            "%s: made with other weights, so it is left out of the card", card.folder / PROBE_FILE
        )
        return {}
    shown = [row for row in rows if row["mass"] >= SHOWN]
    return {
        "templates": card.probe["templates"],
        "rows": shown,
        "baseline": next((row["p_she"] for row in shown if row["occupation"] == BASELINE), None),
        "values": [row["p_she"] for row in shown if row["occupation"] != BASELINE],
        "left_out": len(rows) - len(shown),
        "least_mass": SHOWN,
        "different": DIFFERENT,
        "is_hardly_expected": statistics.median(row["mass"] for row in rows) < EXPECTED,
    }


def _measured_with(card: RunCard) -> list[str]:
    """Flags other than the defaults, by which the held-out pairs and masks were made."""
    defaults, flags = {item.name: item.default for item in dataclasses.fields(DataArguments)}, []
    for name in MEASURED_WITH:
        value, default = card.run.get(key_in_last_phase(card.run, name)), defaults[name]
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        if value is not None and not (
            float(value) == default if is_number else value.lower() == str(default).lower()
        ):
            flags.append(f"--{name} {value}")
    return flags


# The head: what the Hub reads


def card_data(card: RunCard) -> ModelCardData:
    """The head of a card."""
    results, task, given = card.results, card.task, card.given
    base, machine, energy = (
        results.get("base_model") or {},
        results.get("machine") or {},
        _energy(card),
    )
    is_named = base.get("is_local") is False and is_hub_name(str(base.get("name")))
    if task is not None:
        hub_names = {"entities": "seqeval", "pearson": "pearsonr", "multi_label": "f1"}
        metrics = [hub_names.get(name, name) for name in task.metrics]
        datasets = [task.hub_dataset] if card.from_hub else []
        found = list(_task_results(card, task))
    else:
        metrics = ["perplexity", "accuracy"] if results.get("eval_mlm_loss") is not None else []
        datasets = [
            each.get("dataset")
            for each in ((results.get("data") or {}).get("sources") or {}).values()
        ]
        found = list(_pretraining_results(card))
    emissions = None
    if energy.get("grams") is not None:
        # Grams of CO2 with where and how, as the Hub shows them.
        emissions = {
            "emissions": energy["grams"] and float(f"{energy['grams']:.4g}"),
            "source": f"an estimate: {energy.get('how')}",
            "training_type": "pre-training" if task is None else "fine-tuning",
            "geographical_location": energy["country"],
            "hardware_used": as_text(machine.get("gpu") or machine.get("processor")),
        }
        emissions = {name: value for name, value in emissions.items() if value is not None}
    return ModelCardData(
        license=given.license,
        license_name=given.license_name,
        license_link=given.license_link,
        language=given.language,
        library_name="transformers",
        pipeline_tag=card.pipeline,
        tags=[card.model.get("model_type", "bert"), "bert-recipes"],
        base_model=base["name"] if is_named else None,
        datasets=list(dict.fromkeys(filter(None, datasets))) or None,
        metrics=metrics or None,
        co2_eq_emissions=emissions,
        model_name=card.name if found else None,
        eval_results=found or None,
    )


def _result(
    card: RunCard, key: str, metric: str, name: str, dataset: dict[str, Any]
) -> Iterator[EvalResult]:
    """A value of all_results.json, if it is defined."""
    value = card.results.get(key)
    if isinstance(value, int | float) and math.isfinite(value):
        yield EvalResult(metric_value=value, metric_type=metric, metric_name=name, **dataset)


def _pretraining_results(card: RunCard) -> Iterator[EvalResult]:
    """Values on the held-out documents: of a data set of the Hub, or of text that its store's hash
    identifies.
    """
    data = card.results.get("data") or {}
    # Without sources of its own the held-out part was taken from those of training.
    sources = data.get("sources") or {}
    source = sources.get("validation") or sources.get("train") or {}
    dataset: dict[str, Any] = {"dataset_type": "text", "dataset_split": "validation"}
    dataset["dataset_name"] = "held-out documents"
    if name := source.get("dataset"):
        dataset = {"dataset_type": name, "dataset_name": f"held-out documents of {name}"}
        dataset["dataset_config"] = source.get("config")
    elif data.get("fingerprint"):
        dataset["dataset_name"] += f" of the store {data['fingerprint'][:16]}"
    masked = {"task_type": "fill-mask", "task_name": "Masked language modelling", **dataset}
    pairs = {"task_type": "text-classification", "task_name": "Next sentence prediction", **dataset}
    yield from _result(card, "eval_mlm_loss", "loss", "masked-LM loss, nats", masked)
    yield from _result(card, "eval_perplexity", "perplexity", "masked-LM perplexity", masked)
    yield from _result(card, "eval_mlm_accuracy", "accuracy", "masked-LM accuracy", masked)
    yield from _result(card, "eval_nsp_loss", "loss", "next-sentence loss, nats", pairs)
    yield from _result(card, "eval_nsp_accuracy", "accuracy", "next-sentence accuracy", pairs)
    order = {**pairs, "task_name": "Sentence order prediction"}
    yield from _result(card, "eval_sop_loss", "loss", "sentence-order loss, nats", order)
    yield from _result(card, "eval_sop_accuracy", "accuracy", "sentence-order accuracy", order)


def _task_results(card: RunCard, task: Task) -> Iterator[EvalResult]:
    """Values on the validation splits that are complete: others are no results of the data set."""
    for split, metric, key in card.metrics:
        entry = (card.results.get("splits") or {}).get(split) or {}
        if entry.get("partial") is False:
            # Files that nothing shows to be the rows of the data set on the Hub are not called so.
            is_hub = card.from_hub or entry.get("published") is not None
            dataset = {
                "task_type": card.pipeline,
                "dataset_type": (task.hub_dataset if is_hub else None) or task.name,
                "dataset_name": task.name,
                "dataset_config": task.hub_subset if is_hub else None,
                "dataset_split": split,
            }
            yield from _result(card, key, metric, metric.replace("_", " "), dataset)


def hub_results(card: RunCard) -> list[dict[str, Any]]:
    """The best metric on a complete split of a data set of the Hub, as `.eval_results` has it;
    nothing of other data.
    """
    task = card.task
    if task is None:
        return []
    best = {
        (split, metric) for split, metric, key in card.metrics if key == f"eval_{task.best_metric}"
    }
    entries = [
        EvalResultEntry(
            result.dataset_type,
            result.dataset_config or "default",
            result.metric_value,
            notes=f"{result.metric_name} on {result.dataset_split}, fine-tuned with bert-recipes",
        )
        for result in _task_results(card, task)
        if (result.dataset_split, result.metric_type) in best
        and result.dataset_type == task.hub_dataset
    ]
    return eval_result_entries_to_yaml(entries)
