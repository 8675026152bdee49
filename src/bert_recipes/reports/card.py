"""The model card: README.md of a run by one template, from the run's own files and what the user says of the model.

A card ends with the hash of its text: one that somebody has edited is known by it and is never written over.
"""

import dataclasses
import html
import json
import logging
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import ChainableUndefined, Environment, PackageLoader, Undefined
from safetensors import SafetensorError, safe_open
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from bert_recipes.checkpointing import CARD_FILE, TASK_FILE, is_generated_card, seal_card
from bert_recipes.config import field_types, read_flat_yaml, read_tree, save_config
from bert_recipes.errors import InputError, saving
from bert_recipes.files import hash_of, written_aside
from bert_recipes.hub_access import is_hub_name
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.models.inspection import knows_words
from bert_recipes.reports.bias_probe import BASELINE, PROBE_FILE, refresh_probe
from bert_recipes.reports.card_arguments import CardArguments
from bert_recipes.reports.facts import FACTS_FILE
from bert_recipes.reports.page import is_no_better
from bert_recipes.tasks.task import split_suffixes, with_suffix
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DataArguments, has_second_phase, key_in_last_phase
from bert_recipes.training.bert_trainer import MEASURED_WITH
from bert_recipes.training.callbacks import STUCK_MARGIN_NATS
from bert_recipes.training.emissions import EnergySettings, intensity_of_country
from bert_recipes.training.resume import CONFIG_FILE, RESULTS_FILE, name_of_run
from bert_recipes.training.run import WEIGHTS_FILE


logger = logging.getLogger(__name__)

# What the user says of the model.
GIVEN_FILE = "card.yaml"
MODEL_FILE, VOCABULARY_FILE = "config.json", "vocab.txt"
# A fifth of English prose and few words of any other language; ours, as the fraction that is asked for.
_ENGLISH, _ENGLISH_FRACTION = {"the", "of", "and", "to", "that", "is", "with", "this", "not", "it", "was"}, 0.1
# Sentences for the example of an English model, where the tokenizer knows their words.
_SENTENCES = {
    "masked": ("He opened the [MASK] and went into the room.", "Return the [MASK] of the list."),
    "first": ("The weather is fine today.", "Return the number of items in the list."),
    "second": ("It has not rained for a week.", "If the list is empty, zero is returned."),
}
# Our choice: a model that gives the two pronouns less than this in most of the sentences does not take the position for theirs.
EXPECTED = 0.01
# Ours too: with less between the least and the greatest P(she) the occupation says nothing.
DIFFERENT = 0.05


class RunCard:
    """What a card is made of: the files of a finished run, opened when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (CONFIG_FILE, RESULTS_FILE, MODEL_FILE):
            if not (folder / name).is_file():
                why = "the run has not come to its end" if name == RESULTS_FILE else "it is no run of this project"
                raise InputError(f"{folder} has no {name}: {why}; give the folder of a finished run")
        self.is_fine_tuned = (folder / TASK_FILE).is_file()
        self.run = read_tree(folder / CONFIG_FILE)[0]
        self.results, self.model, self.report, self.probe, self.tokenizer = (
            _read_json(folder / name)
            for name in (RESULTS_FILE, MODEL_FILE, FACTS_FILE, PROBE_FILE, "tokenizer_config.json")
        )
        self.task = read_tree(folder / TASK_FILE)[0] if self.is_fine_tuned else {}
        is_given = (folder / GIVEN_FILE).is_file()
        given = read_flat_yaml(folder / GIVEN_FILE, field_types(CardArguments)) if is_given else {}
        self.given = CardArguments(**given)

    @cached_property
    def is_english(self) -> bool:
        """Whether English is put to the model: by what the user says, else by the words of its held-out text.

        Of a fine-tuned model of which neither is known True: its vocabulary decides then (`knows_words`).
        """
        if self.given.language is not None:
            return "en" in self.given.language
        held_out = self.report.get("held_out") or {}
        examples = [each for name in ("masks", "verdicts") for each in held_out.get(name) or ()]
        parts = [str(each.get(name, "")) for each in examples for name in ("before", "after", "first", "second")]
        words = [word for word in " ".join(parts).lower().split() if word.isalpha()]
        known = sum(word in _ENGLISH for word in words)
        return known >= _ENGLISH_FRACTION * len(words) if words else self.is_fine_tuned

    @property
    def repository(self) -> str | None:
        """The model's name on the Hub: said by the user, or where the run itself pushes it to.

        Of a run that pushes to a branch None: what is opened by the repository's name is the model on main.
        """
        is_pushed = self.run.get("push_to_hub") == "true" and self.run.get("hub_revision") in (None, "main")
        return self.given.repo_id or (self.run.get("hub_model_id") if is_pushed else None)

    @property
    def name(self) -> str:
        """As it was given, that of the repository, or of the folder."""
        repository = self.repository and self.repository.rpartition("/")[2]
        return str(as_text(self.given.name) or repository or as_text(name_of_run(self.folder)))

    @property
    def pipeline(self) -> str:
        """The Hub's word for what the model does."""
        kind = self.task.get("kind", "fill-mask")
        return "text-classification" if kind == "sequence_classification" else kind.replace("_", "-")

    @property
    def from_hub(self) -> bool:
        """Whether the examples were read from the task's data set on the Hub."""
        sources = [str(split.get("source")) for split in (self.results.get("splits") or {}).values()]
        return bool(sources) and all(source.startswith("Hub data set ") for source in sources)

    @cached_property
    def weights(self) -> dict[str, Any]:
        """Parameters, types and bytes of the weights, and the hash of a single file; empty where they are gone."""
        index, files = self.folder / f"{WEIGHTS_FILE}.index.json", [self.folder / WEIGHTS_FILE]
        if index.is_file():
            names = _read_json(index).get("weight_map")
            if not isinstance(names, dict):
                raise InputError(f"{index}: damaged: it has no weight_map")
            files = sorted({self.folder / str(name) for name in names.values()})
        if not all(file.is_file() for file in files):
            return {}
        parameters, types = 0, set()
        for file in files:
            try:
                with safe_open(file, "numpy") as opened:
                    # Only shapes are read, no numbers.
                    tensors = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118  (it is no mapping)
                    parameters += sum(math.prod(tensor.get_shape()) for tensor in tensors)
                    types |= {str(tensor.get_dtype()) for tensor in tensors}
            except SafetensorError as error:
                raise InputError(f"{file}: damaged: {error}") from error
        facts = {"parameters": parameters, "types": ", ".join(sorted(types))}
        facts["bytes"] = sum(file.stat().st_size for file in files)
        return facts | ({"sha256": hash_of(files[0])} if len(files) == 1 else {})

    @cached_property
    def metrics(self) -> list[tuple[str, str, str]]:
        """(split, metric, key in all_results.json) of every result of a task."""
        names = self.task.get("validation_splits") or []
        names, found = [names] if isinstance(names, str) else names, []
        # The split without a suffix last: every name would fit it.
        suffixes = sorted(zip(split_suffixes(names), names, strict=True), key=lambda pair: -len(pair[0]))
        for key, value in self.results.items():
            name = key.removeprefix("eval_")
            times = ("seconds", "runtime", "samples_per_second", "steps_per_second")
            if key == name or name in times or not isinstance(value, int | float):
                continue
            for suffix, split in suffixes:
                prefix = with_suffix(suffix, "") if suffix else ""
                if name.startswith(prefix):
                    found.append((split, name.removeprefix(prefix), key))
                    break
        return found


def _read_json(path: Path) -> Any:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: damaged: {error}") from error


# Writing


def write_card(folder: str | Path, given: CardArguments | None = None, *, overwrite: bool = False) -> Path:
    """Write the card of a finished run; leaves README.md, and card.yaml with what the user said, now or before.

    Args:
        folder: Of the run.
        given: What no file of the run says; what is None is taken from the run's card.yaml.
        overwrite: Also over a README.md that somebody has edited, or that was not written by this function.
    """
    folder = Path(folder)
    given = _resolved(check_card(folder, given, overwrite=overwrite), given)
    with saving(folder):
        if given != CardArguments():
            save_config(folder / GIVEN_FILE, given)
        text = seal_card(card_text(RunCard(folder)))
        with written_aside(folder / CARD_FILE) as aside:
            aside.write_text(text, encoding="utf-8", newline="\n")
    return folder / CARD_FILE


def check_card(folder: str | Path, given: CardArguments | None = None, *, overwrite: bool = False) -> RunCard:
    """See that a card can be written; takes no time."""
    card = RunCard(Path(folder))
    if not overwrite and not is_generated_card(card.folder):
        raise InputError(
            f"{card.folder / CARD_FILE} was edited, or not written by this project, so it is left as it is; move it away, or "
            "write it again with --overwrite true"
        )
    _resolved(card, given)
    return card


def _resolved(card: RunCard, given: CardArguments | None) -> CardArguments:
    """What is said now and before, checked; the carbon intensity of a country is looked up where the card needs it."""
    said = (given or CardArguments()).merge(card.given)
    said.check()
    energy, results = card.results.get("energy") or {}, card.folder / RESULTS_FILE
    is_known = energy.get("kwh") is not None
    if is_known and said.power_watts is not None:
        raise InputError(
            f"power_watts: the run has estimated its energy itself ({results}); leave it out, or take it out of card.yaml"
        )
    if said.energy != EnergySettings() and not is_known and said.power_watts is None:
        raise InputError(
            f"country_iso_code and carbon_intensity: {results} has no estimate of the energy that they could be used with; "
            "give --power_watts too"
        )
    said.energy.check(has_energy=True)
    if said.country_iso_code is not None and said.carbon_intensity is None and energy.get("co2_kg") is None:
        return dataclasses.replace(said, carbon_intensity=intensity_of_country(said.country_iso_code))
    return said


def write_card_of_run(folder: Path) -> list[Path]:
    """Probe and `write_card` at the end of a run, which a card that cannot be written does not make fail: a warning says why."""
    try:
        card = check_card(folder)
        if not card.is_fine_tuned and card.is_english:
            # Under DeepSpeed's stage 3 all processes would have to open the model together; here one does it alone.
            unset_hf_deepspeed_config()
            refresh_probe(folder)
        return [write_card(folder)]
    except (InputError, OSError) as error:
        logger.warning("no model card is written: %s", error)
    except Exception:
        # A mistake of ours: the run is complete all the same, and other processes wait for this one.
        logger.exception("no model card is written; the run itself is finished and complete")
    return []


def name_repository(folder: Path, repo_id: str) -> None:
    """Before a finished run is pushed: let its card load the model from there, wherever it was pushed before.

    A card that somebody has edited stays as it is, with a warning where it names the repository of an earlier push.
    """
    if not all((folder / name).is_file() for name in (CARD_FILE, CONFIG_FILE, RESULTS_FILE, MODEL_FILE)):
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
                '%s was edited and stays: it says that the model is %s, not %s; `make card RUN=%s ARGS="--repo_id %s --overwrite true"` '
                "writes it again",
                *(folder / CARD_FILE, known, repo_id, folder, repo_id),
            )
    except InputError as error:
        logger.warning("the model card does not say that the model is %s: %s", repo_id, error)


def card_text(card: RunCard) -> str:
    """The complete card: the head for the Hub, and the sections about which the run says something."""
    given = {name: as_text(value) for name, value in vars(card.given).items()}
    vocabulary = card.folder / VOCABULARY_FILE
    text = _environment().get_template("card.md.j2").render(
        card=card,
        head=card_data(card).to_yaml(),
        given=given,
        vocabulary={"sha256": hash_of(vocabulary), "lines": len(vocabulary.read_bytes().splitlines())}
        if vocabulary.is_file()
        else {},
        example=lambda kind: _example(card, kind),
        energy=_energy(card),
        probe=_probe(card),
        has_second_phase=has_second_phase(card.run),
        longest=card.run.get(key_in_last_phase(card.run, "max_seq_length")),
        is_no_better=card.is_fine_tuned and is_no_better(card.results, str(card.task.get("best_metric"))),
        stuck=STUCK_MARGIN_NATS,
        evaluation_command=_evaluation_command(card),
        training_command=_training_command(card),
        **{name: getattr(card, name) for name in ("run", "results", "model", "task", "tokenizer", "weights")},
    )  # fmt: skip
    lines = [line.rstrip() for line in text.splitlines()]
    return str(ModelCard(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bert_recipes.reports"),
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    formats: dict[str, Callable[..., str | None]] = {
        "text": as_text,
        "count": count,
        "fixed": lambda value, digits: f"{float(value):,.{digits}f}",
        "percent": lambda value: f"{float(value):.1%}",
        "size": size,
        "hours": hours,
        "digits": significant,
        "hash": lambda value: f"`{str(value)[:16]}`",
        "code": code,
        "metric": lambda value: f"{value:,}" if isinstance(value, int) else f"{value:.4f}",
        "interval": lambda accuracy, pairs: " to ".join(f"{end:.1%}" for end in wilson_interval(accuracy, pairs)),
    }
    environment.filters |= {name: _of_known(format) for name, format in formats.items()}
    environment.globals["wilson_interval"] = wilson_interval
    return environment


def _of_known(format: Callable[..., str | None]) -> Callable[..., str | None]:
    """None for a value that is missing, or empty as text: a row with it is left out."""

    @wraps(format)
    def known(*values: Any) -> str | None:
        if any(value is None or isinstance(value, Undefined) for value in values):
            return None
        return format(*values) or None

    return known


# Values as text


def as_text(value: Any) -> str | None:
    """A text as it was written, a count with its thousands, a list with commas; nothing of what is empty."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
    if isinstance(value, list):
        return ", ".join(text for item in value if (text := as_text(item))) or None
    return _cell(html.escape(str(value), quote=False))


def count(value: Any) -> str | None:
    """A whole number, also where JSON has it as a float or YAML as a text; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return f"{round(number):,}" if math.isfinite(number) else None


def size(value: Any) -> str:
    """Bytes in thousands, millions, ..."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value:,} bytes"


def hours(seconds: Any) -> str:
    """Seconds as hours, and as they are."""
    return f"{significant(float(seconds) / 3600)} ({float(seconds):,.1f} s)"


def significant(value: float) -> str:
    """A number with as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def code(value: Any) -> str:
    """A word of a file or a setting, which may hold a backtick itself."""
    text = _cell(str(value))
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    """A text that neither ends a cell of a table nor the line."""
    return " ".join(text.replace("|", "\\|").split())


# Sections


def _example(card: RunCard, kind: str) -> str:
    """A text as a Python string: English where that is the model's, else held out, else words of the tokenizer."""
    tokenizer = load_tokenizer(card.folder)
    for text in _SENTENCES[kind] if card.is_english else ():
        if knows_words(tokenizer, text):
            return json.dumps(text)
    verdicts = (card.report.get("held_out") or {}).get("verdicts") or [{}]
    for name in ("second", "first") if kind == "masked" else ():
        words = str(verdicts[0].get(name) or "").split()
        if len(words) > 1:
            words = words[:12]
            words[max(range(len(words)), key=lambda number: len(words[number]))] = str(tokenizer.mask_token)
            return json.dumps(" ".join(words), ensure_ascii=False)
    vocabulary = tokenizer.get_vocab()
    words = [piece for piece in vocabulary if piece.isalpha() and piece not in tokenizer.all_special_tokens]
    words = sorted(words, key=lambda word: (len(word) < 2, vocabulary[word]))[:4]
    words[1:1] = [str(tokenizer.mask_token)] if kind == "masked" else []
    return json.dumps(" ".join(words), ensure_ascii=False)


def _energy(card: RunCard) -> dict[str, Any]:
    """Kilowatt-hours, grams of CO2 and how they were estimated, by the run or by the power that the user gives; empty without."""
    results, given = card.results, card.given
    known, seconds = results.get("energy") or {}, results.get("train_seconds")
    intensity = known.get("carbon_intensity", given.carbon_intensity)
    found = {"intensity": intensity, "country": known.get("country_iso_code", given.country_iso_code)}
    # Runs of older versions do not say whether the hours are those of all parts; of one that was resumed they are the last part's.
    is_complete = results.get("train_seconds_is_whole")
    is_complete = results.get("resumed_at_step") is None if is_complete is None else is_complete
    if known.get("kwh") is not None:
        kwh, grams = known["kwh"], known.get("co2_kg")
        grams = grams * 1000 if grams is not None else kwh * float(intensity) if intensity is not None else None
        covered = known.get("seconds")
        is_part = not is_complete or (covered is not None and seconds is not None and covered < 0.99 * seconds)
        found |= {
            "kwh": kwh,
            "grams": grams,
            "how": known.get("estimated_by"),
            "covered": covered if is_part else None,
        }
    elif given.power_watts is not None and seconds is not None:
        kwh = given.power_watts / 1000 * seconds / 3600
        how = f"a given power draw of {given.power_watts:g} W times the hours"
        grams = None if intensity is None else kwh * float(intensity)
        found |= {"kwh": kwh, "grams": grams, "how": how, "covered": None if is_complete else seconds}
    return found | {"is_complete": is_complete}


def _probe(card: RunCard) -> dict[str, Any]:
    """The measured probe and its summary; empty where it was not made, or with other weights, or not of English."""
    rows = card.probe.get("rows")
    if card.is_fine_tuned or not rows or not card.is_english:
        return {}
    # Of weights in several files neither is known.
    if card.probe.get("weights_sha256") != card.weights.get("sha256"):
        logger.warning("%s: made with other weights, so it is left out of the card", card.folder / PROBE_FILE)
        return {}
    usual = [row["p_she"] for row in rows if row["occupation"] == BASELINE]
    shares = [row["p_she"] for row in rows if row["occupation"] != BASELINE]
    return {
        **card.probe,
        "total": len(shares),
        "below": sum(share < 0.5 for share in shares),
        "above": sum(share > usual[0] for share in shares) if usual else 0,
        "least": min(shares),
        "most": max(shares),
        "hardly_differ": max(shares) - min(shares) < DIFFERENT,
        "hardly_expected": statistics.median(row["mass"] for row in rows) < EXPECTED,
    }


def _evaluation_command(card: RunCard) -> str:
    """What gives the values of the card again; words in capitals stand for folders."""
    words, run = ["python recipes/evaluate_checkpoint.py --model_name_or_path MODEL"], card.run
    if card.is_fine_tuned:
        words.append("--task_file MODEL/task.yaml" if run.get("task_file") else f"--task {as_text(card.task['name'])}")
        words += [] if card.from_hub else ["--data_dir DATA"]
        words += [f"--max_eval_examples {run['max_eval_examples']}"] if run.get("max_eval_examples") else []
        return " ".join(words)
    if run.get("train_file"):
        words.append("--train_file TRAIN --validation_file VALIDATION --tokenizer MODEL")
    else:
        words.append("--store STORE")
    defaults = {item.name: item.default for item in dataclasses.fields(DataArguments)}
    for name in MEASURED_WITH:
        value, default = run.get(key_in_last_phase(run, name)), defaults[name]
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        if value is not None and not (float(value) == default if is_number else value.lower() == str(default).lower()):
            words.append(f"--{name} {value}")
    return " ".join(words)


def _training_command(card: RunCard) -> str:
    """Trains the run again, in a folder of its own, and pushes it nowhere; in capitals what run.yaml has as a path of the machine."""
    run = card.run
    words = [f"python recipes/{'finetune' if card.is_fine_tuned else 'pretrain'}.py --config MODEL/run.yaml"]
    if card.is_fine_tuned:
        words += ["--task_file MODEL/task.yaml"] if run.get("task_file") else []
        words += ["--model_name_or_path BASE", *([] if card.from_hub else ["--data_dir DATA"])]
    else:
        words.append("--train_file TRAIN" if run.get("train_file") else "--store STORE")
        words += ["--validation_file VALIDATION"] if run.get("validation_file") else []
        tokenizer, base = run.get("tokenizer"), card.results.get("base_model") or {}
        if tokenizer is not None and (Path(tokenizer).exists() or not is_hub_name(tokenizer)):
            words.append("--tokenizer TOKENIZER")
        if run.get("model_name_or_path") is not None and base.get("is_local") is not False:
            words.append("--model_name_or_path BASE")
    words += ["--output_dir NEW_FOLDER", *(["--push_to_hub false"] if run.get("push_to_hub") == "true" else [])]
    return " ".join(words)


# The head: what the Hub reads


def card_data(card: RunCard) -> ModelCardData:
    """The head of a card."""
    results, task, given = card.results, card.task, card.given
    sources, base = (results.get("data") or {}).get("sources") or {}, results.get("base_model") or {}
    datasets = [task.get("hub_dataset")] if card.from_hub else []
    datasets += [source.get("dataset") for source in sources.values()]
    if card.is_fine_tuned:
        names = task.get("metrics") or []
        names = [names] if isinstance(names, str) else names
        hub_names = {"entities": "seqeval", "pearson": "pearsonr", "multi_label": "f1"}
        metrics, found = [hub_names.get(name, name) for name in names], _task_results(card)
    else:
        metrics = ["perplexity", "accuracy"] if results.get("eval_mlm_loss") is not None else []
        found = _pretraining_results(card)
    is_named = base.get("is_local") is False and is_hub_name(str(base.get("name")))
    return ModelCardData(
        license=given.license,
        license_name=given.license_name,
        license_link=given.license_link,
        language=given.language,
        library_name="transformers",
        pipeline_tag=card.pipeline,
        tags=["bert", "bert-recipes"],
        base_model=base["name"] if is_named else None,
        datasets=list(dict.fromkeys(filter(None, datasets))) or None,
        metrics=metrics or None,
        co2_eq_emissions=_emissions(card),
        model_name=card.name if found else None,
        eval_results=found or None,
    )


def _emissions(card: RunCard) -> dict[str, Any] | None:
    """Grams of CO2 with where and how, as the Hub shows them."""
    energy, machine = _energy(card), card.results.get("machine") or {}
    if energy.get("grams") is None:
        return None
    facts = {
        "emissions": float(f"{energy['grams']:.4g}"),
        "source": f"an estimate: {energy['how']}",
        "training_type": "fine-tuning" if card.is_fine_tuned else "pre-training",
        "geographical_location": energy["country"],
        "hardware_used": as_text(machine.get("gpu") or machine.get("processor")),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _results(
    card: RunCard,
    task_type: str,
    task_name: str | None,
    rows: Sequence[tuple[str, str, str]],
    dataset: Mapping[str, Any],
) -> list[EvalResult]:
    """The values that are defined, of (key, the Hub's word for the metric, its name)."""
    values = [(card.results.get(key), *names) for key, *names in rows]
    return [
        EvalResult(
            task_type=task_type,
            task_name=task_name,
            metric_type=metric,
            metric_name=name,
            metric_value=value,
            **dataset,
        )
        for value, metric, name in values
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]


def _pretraining_results(card: RunCard) -> list[EvalResult]:
    """Values on the held-out documents: of a data set of the Hub, or of text that its store's hash identifies."""
    data = card.results.get("data") or {}
    # Without sources of its own the held-out part was taken from those of training.
    sources = data.get("sources") or {}
    source = sources.get("validation") or sources.get("train") or {}
    dataset: dict[str, Any] = {
        "dataset_type": "text",
        "dataset_name": "held-out documents",
        "dataset_split": "validation",
    }
    if source.get("dataset"):
        name = source["dataset"]
        dataset = {"dataset_type": name, "dataset_name": f"held-out documents of {name}"}
        dataset["dataset_config"] = source.get("config")
    elif data.get("fingerprint"):
        dataset["dataset_name"] += f" of the store {data['fingerprint'][:16]}"
    masked = [
        ("eval_mlm_loss", "loss", "masked-LM loss, nats"),
        ("eval_perplexity", "perplexity", "masked-LM perplexity"),
        ("eval_mlm_accuracy", "accuracy", "masked-LM accuracy"),
    ]
    next_sentence = [
        ("eval_nsp_loss", "loss", "next-sentence loss, nats"),
        ("eval_nsp_accuracy", "accuracy", "next-sentence accuracy"),
    ]
    return _results(card, "fill-mask", "Masked language modelling", masked, dataset) + _results(
        card, "text-classification", "Next sentence prediction", next_sentence, dataset
    )


def _task_results(card: RunCard) -> list[EvalResult]:
    """Values on the validation splits that are complete: others are no results of the data set."""
    task, found = card.task, []
    for split, metric, key in card.metrics:
        entry = (card.results.get("splits") or {}).get(split) or {}
        if entry.get("partial") is not False:
            continue
        # Files that nothing shows to be the rows of the data set on the Hub are not called so.
        is_hub = card.from_hub or entry.get("published") is not None
        dataset = {
            "dataset_type": (task.get("hub_dataset") if is_hub else None) or task["name"],
            "dataset_name": task["name"],
            "dataset_config": task.get("hub_subset") if is_hub else None,
            "dataset_split": split,
        }
        found += _results(card, card.pipeline, None, [(key, metric, metric.replace("_", " "))], dataset)
    return found
