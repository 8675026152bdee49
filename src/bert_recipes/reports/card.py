"""Write the model card of a finished run, README.md, from its files and what the user says.

A card ends with the hash of its text: an edited card is recognized by it and is never overwritten.
"""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import ChainableUndefined
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from bert_recipes.checkpointing import may_replace_card, seal_card
from bert_recipes.config import field_types, read_flat_yaml, save_config
from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write
from bert_recipes.hub_access import is_hub_name
from bert_recipes.reports.bias_probe import read_probe, refresh_probe
from bert_recipes.reports.card_arguments import CardArguments
from bert_recipes.reports.facts import RunFiles, read_object, read_run
from bert_recipes.reports.page import METRIC_HEADS, environment_of, is_no_better, metrics_of_splits
from bert_recipes.run_folder import (
    CARD_FILE,
    CARD_SETTINGS_FILE,
    CONFIG_FILE,
    MODEL_CONFIG_FILE,
    PROBE_FILE,
    RESULTS_FILE,
    SWEEP_FILE,
)
from bert_recipes.shipped import command_hint
from bert_recipes.tasks.task import Task, figure_names, metric_prefixes, with_prefix
from bert_recipes.training.arguments import has_second_phase, key_in_last_phase
from bert_recipes.training.bert_trainer import EVALUATION_FIELDS
from bert_recipes.training.callbacks import STUCK_MARGIN_NATS


logger = logging.getLogger(__name__)

# Objectives whose models predict no masked tokens.
WITHOUT_MASKED_LM = ("electra", "tinybert", "ltr")
# Metrics of model-index: key in all_results.json, name of the task, type of the metric on the Hub.
PRETRAINING_METRICS = (
    ("eval_mlm_loss", "Masked language modelling", "loss"),
    ("eval_perplexity", "Masked language modelling", "perplexity"),
    ("eval_mlm_accuracy", "Masked language modelling", "accuracy"),
    ("eval_nsp_loss", "Next sentence prediction", "loss"),
    ("eval_nsp_accuracy", "Next sentence prediction", "accuracy"),
    ("eval_sop_loss", "Sentence order prediction", "loss"),
    ("eval_sop_accuracy", "Sentence order prediction", "accuracy"),
    ("eval_disc_loss", "Replaced token detection", "loss"),
    ("eval_disc_accuracy", "Replaced token detection", "accuracy"),
)


@dataclass
class RunCard:
    """A finished run and its card."""

    run: RunFiles
    arguments: CardArguments = field(default_factory=CardArguments)

    @property
    def repository(self) -> str | None:
        """Return the model's name on the Hub: the user's, or the one that the run pushed to."""
        if self.arguments.repo_id is not None:
            return self.arguments.repo_id
        settings = self.run.settings
        is_main = settings.get("hub_revision") in (None, "main")
        if settings.get("push_to_hub") == "true" and is_main:
            return settings.get("hub_model_id")
        return None

    @property
    def name(self) -> str:
        """Return the name that the user gave, that of the repository, or that of the folder."""
        if self.arguments.name is not None:
            return self.arguments.name
        return (self.repository or self.run.name).rpartition("/")[2]

    @property
    def pipeline(self) -> str:
        """Return the Hub's name of what the model does."""
        if self.run.settings.get("distil") == "intermediate":
            return "feature-extraction"
        if self.run.task is None:
            has_mask = self.run.settings.get("objective") not in WITHOUT_MASKED_LM
            return "fill-mask" if has_mask else "feature-extraction"
        if self.run.task.kind == "sequence_classification":
            return "text-classification"
        return self.run.task.kind.replace("_", "-")

    @property
    def reads_hub_dataset(self) -> bool:
        """Tell whether the examples were read from the task's data set on the Hub."""
        splits = self.run.results.get("splits") or {}
        sources = [str(split.get("source")) for split in splits.values()]
        return bool(sources) and all(source.startswith("Hub data set ") for source in sources)

    @property
    def takes_probe(self) -> bool:
        """Tell whether the English probe of pronouns fits the model."""
        language = self.arguments.language
        return self.pipeline == "fill-mask" and (language is None or "en" in language)


# Writing


def write_card(
    folder: str | Path, arguments: CardArguments | None = None, *, overwrite: bool = False
) -> Path:
    """Write the card of a finished run, and what the user said of the model, now or earlier.

    Args:
        folder: Of the run.
        arguments: What the user says now; None: nothing new.
        overwrite: Replace an edited card, too.
    """
    card = check_card(folder, arguments, overwrite=overwrite)
    folder = card.run.folder
    text = seal_card(card_text(card))
    with saving(folder):
        if card.arguments != CardArguments():
            save_config(folder / CARD_SETTINGS_FILE, card.arguments)
        with atomic_write(folder / CARD_FILE) as file:
            file.write_text(text, encoding="utf-8", newline="\n")
    return folder / CARD_FILE


def check_card(
    folder: str | Path, arguments: CardArguments | None = None, *, overwrite: bool = False
) -> RunCard:
    """Return a run's card with what the user says now; refuse what cannot be written.

    It takes no time: call it before what does.
    """
    card = read_card(Path(folder))
    file = card.run.folder / CARD_FILE
    if not overwrite and not may_replace_card(card.run.folder):
        raise InputError(
            f"{file} was edited, or not written by this project, so it is left as it is; move it "
            "away, or write it again with --overwrite true"
        )
    if arguments is not None:
        card.arguments = arguments.merge(card.arguments)
    card.arguments.check()
    return card


def read_card(folder: Path) -> RunCard:
    """Read a finished run, and what the user has said of its model."""
    run = read_run(folder)
    for name in (CONFIG_FILE, MODEL_CONFIG_FILE):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}: it is no run of this project")
    file = folder / CARD_SETTINGS_FILE
    if not file.is_file():
        return RunCard(run)
    return RunCard(run, CardArguments(**read_flat_yaml(file, field_types(CardArguments))))


def write_card_of_run(folder: Path) -> list[Path]:
    """Write probe and card at the end of a run; a card that cannot be written is only a warning."""
    try:
        if check_card(folder).takes_probe:
            # Under DeepSpeed's stage 3 all processes would have to open the model together; here
            # one does it alone.
            unset_hf_deepspeed_config()
            refresh_probe(folder)
        return [write_card(folder)]
    except (InputError, OSError) as error:
        logger.warning("no model card is written: %s", error)
    except Exception:
        # The run is complete all the same, and other processes wait for this one.
        logger.exception("no model card is written; the run itself is finished and complete")
    return []


def name_repository(folder: Path, repo_id: str, tags: Sequence[str] = ()) -> None:
    """Let the card of a finished run load the model from the repository that it is pushed to.

    The tags that it is pushed with stay in the card when it is written again.

    An edited card stays, with a warning if it names another repository.
    """
    names = (CARD_FILE, CONFIG_FILE, RESULTS_FILE, MODEL_CONFIG_FILE)
    if not all((folder / name).is_file() for name in names):
        return
    try:
        card = read_card(folder)
        card_tags = card.arguments.tags or []
        all_tags = list(dict.fromkeys([*card_tags, *tags]))
        if not may_replace_card(folder):
            _warn_of_other_repository(folder, card.repository, repo_id)
        elif card.repository != repo_id or all_tags != card_tags:
            write_card(folder, CardArguments(repo_id=repo_id, tags=all_tags or None))
    except InputError as error:
        logger.warning("the model card does not load the model from %s: %s", repo_id, error)


def _warn_of_other_repository(folder: Path, card_repository: str | None, repo_id: str) -> None:
    """Warn where an edited card loads the model from another repository than `repo_id`."""
    text = (folder / CARD_FILE).read_text(encoding="utf-8", errors="replace")
    if card_repository in (None, repo_id) or f'"{card_repository}"' not in text:
        return
    flags = f"--repo_id {repo_id} --overwrite true"
    command = command_hint(
        checkout=f'make card RUN={folder} ARGS="{flags}"',
        wheel=f"bert-recipes write-model-card --run_dir {folder} {flags}",
    )
    logger.warning(
        "%s was edited and stays: it loads the model from %s, not from %s; `%s` writes it again",
        folder / CARD_FILE,
        card_repository,
        repo_id,
        command,
    )


def card_text(card: RunCard) -> str:
    """Return the complete card: the head for the Hub, and the sections that have facts."""
    run = card.run
    task = run.task
    tokenizer = run.settings.get("tokenizer")
    has_local_tokenizer = tokenizer is not None and (
        Path(tokenizer).exists() or not is_hub_name(tokenizer)
    )
    environment = environment_of("md").overlay(undefined=ChainableUndefined)
    text = environment.get_template("card.md.j2").render(
        card=card,
        head=card_data(card).to_yaml(),
        arguments=card.arguments,
        run=run.settings,
        results=run.results,
        facts=run.facts,
        task=task,
        model=read_object(run.folder / MODEL_CONFIG_FILE),
        tokenizer=read_object(run.folder / "tokenizer_config.json"),
        probe=read_probe_of_card(card),
        metric_heads=METRIC_HEADS,
        metric_rows=metrics_of_splits(run.results),
        tested_splits=_tested_splits(run),
        copies_teacher=_copies_teacher(run),
        evaluation_flags=evaluation_flags(run.settings),
        max_seq_length=run.settings.get(key_in_last_phase(run.settings, "max_seq_length")),
        has_second_phase=has_second_phase(run.settings),
        stuck_margin=STUCK_MARGIN_NATS,
        is_best_of_sweep=_is_best_of_sweep(run.folder.resolve()),
        is_no_better=task is not None and is_no_better(run.results, task.best_metric),
        has_local_tokenizer=has_local_tokenizer,
    )
    lines = [line.rstrip() for line in text.splitlines()]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return str(ModelCard(f"{text}\n"))


def _is_best_of_sweep(folder: Path) -> bool:
    """Return whether a sweep has chosen a run among several."""
    sweep_folder = folder.parent.parent
    if not (sweep_folder / SWEEP_FILE).is_file():
        return False
    sweep = read_object(sweep_folder / SWEEP_FILE)
    if sweep.get("best_run") != str(folder.relative_to(sweep_folder)):
        return False
    return sum(len(entry["runs"]) for entry in sweep["combinations"]) > 1


def _copies_teacher(run: RunFiles) -> bool:
    """Return whether a student began with layers of its teacher, as DistilBERT's."""
    is_distilbert = run.settings.get("objective") == "distilbert"
    return is_distilbert and run.settings.get("start_from_teacher") != "false"


def _tested_splits(run: RunFiles) -> list[str]:
    """Return the test splits of a task that have metrics; those without labels have none."""
    task = run.task
    if task is None:
        return []
    tested = []
    prefixes = metric_prefixes(task.test_splits, "test")
    for prefix, split in zip(prefixes, task.test_splits, strict=True):
        for figure in figure_names(task.metrics, [split]):
            if f"test_{with_prefix(prefix, figure)}" in run.results and split not in tested:
                tested.append(split)
    return tested


def read_probe_of_card(card: RunCard) -> dict[str, Any]:
    """Return what the probe of pronouns has measured with the run's weights; empty without one."""
    if not card.takes_probe:
        return {}
    file = card.run.folder / PROBE_FILE
    probe = read_probe(card.run.folder)
    if file.is_file() and not probe:
        logger.warning("%s was made with other weights, so it is left out of the card", file)
    return probe


def evaluation_flags(settings: dict[str, Any]) -> list[str]:
    """Return the flags by which evaluate_checkpoint.py makes the held-out inputs of a run."""
    flags = []
    for name in EVALUATION_FIELDS:
        value = settings.get(key_in_last_phase(settings, name))
        if value is not None:
            flags.append(f"--{name} {value}")
    return flags


# The head: what the Hub reads


def card_data(card: RunCard) -> ModelCardData:
    """Return the head of a card."""
    run = card.run
    arguments = card.arguments
    base = run.results.get("base_model") or {}
    if _copies_teacher(run):
        base = run.results.get("teacher") or {}
    has_hub_base = base.get("is_local") is False and is_hub_name(str(base.get("name")))
    results = _pretraining_results(run) if run.task is None else _task_results(card, run.task)
    results = [result for result in results if is_number(result.metric_value)]
    metrics = dict.fromkeys(result.metric_type for result in results)
    metrics.pop("loss", None)
    model = read_object(run.folder / MODEL_CONFIG_FILE)
    tags = [model.get("model_type", "bert"), "bert-recipes", *(arguments.tags or ())]
    hub_tags = run.settings.get("hub_tags")
    if isinstance(hub_tags, list):
        tags += hub_tags
    return ModelCardData(
        license=arguments.license,
        license_name=arguments.license_name,
        license_link=arguments.license_link,
        language=arguments.language,
        library_name="transformers",
        pipeline_tag=card.pipeline,
        tags=list(dict.fromkeys(tags)),
        base_model=base["name"] if has_hub_base else None,
        datasets=_datasets(card) or None,
        metrics=list(metrics) or None,
        co2_eq_emissions=_emissions(run),
        model_name=card.name if results else None,
        eval_results=results or None,
    )


def is_number(value: Any) -> TypeGuard[float]:
    """Tell whether a result is defined."""
    return isinstance(value, int | float) and math.isfinite(value)


def _datasets(card: RunCard) -> list[str]:
    """Return the data sets of the Hub that the run was trained or measured on."""
    task = card.run.task
    if task is not None:
        if card.reads_hub_dataset and task.hub_dataset:
            return [task.hub_dataset]
        return []
    data = card.run.results.get("data") or {}
    sources = data.get("sources") or {}
    names = dict.fromkeys(source.get("dataset") for source in sources.values())
    return [name for name in names if name is not None]


def _emissions(run: RunFiles) -> dict[str, Any] | None:
    """Return grams of CO2 as the Hub shows them, of a run that estimated them."""
    energy = run.results.get("energy") or {}
    if energy.get("co2_kg") is None:
        return None
    emissions = {
        "emissions": float(f"{1000 * energy['co2_kg']:.4g}"),
        "source": f"an estimate: {energy.get('estimated_by')}",
        "training_type": "pre-training" if run.task is None else "fine-tuning",
    }
    if "country_iso_code" in energy:
        emissions["geographical_location"] = energy["country_iso_code"]
    return emissions


def _pretraining_results(run: RunFiles) -> list[EvalResult]:
    """Return the metrics on the held-out documents."""
    dataset = _held_out_dataset(run.results.get("data") or {})
    has_masked_lm = run.settings.get("objective") not in WITHOUT_MASKED_LM
    results = []
    for key, task_name, metric in PRETRAINING_METRICS:
        is_masked_lm = task_name == "Masked language modelling"
        if is_masked_lm and not has_masked_lm:  # of ELECTRA's generator, of the next token
            continue
        result = EvalResult(
            task_type="fill-mask" if is_masked_lm else "text-classification",
            task_name=task_name,
            metric_type=metric,
            metric_name=key.removeprefix("eval_").replace("_", " "),
            metric_value=run.results.get(key),
            **dataset,
        )
        results.append(result)
    return results


def _held_out_dataset(data: dict[str, Any]) -> dict[str, Any]:
    """Name the held-out documents: by their data set on the Hub, or by the hash of the store."""
    sources = data.get("sources") or {}
    # Without a source of its own the held-out part was split off the training data.
    source = sources.get("validation") or sources.get("train") or {}
    name = source.get("dataset")
    if name:
        return {
            "dataset_type": name,
            "dataset_name": f"held-out documents of {name}",
            "dataset_config": source.get("config"),
        }
    title = "held-out documents"
    fingerprint = data.get("fingerprint")
    if fingerprint:
        title += f" of the store {fingerprint[:16]}"
    return {
        "dataset_type": "text",
        "dataset_name": title,
        "dataset_split": "validation",
    }


def _task_results(card: RunCard, task: Task) -> list[EvalResult]:
    """Return the metrics on complete splits: others are no results of the data set."""
    results = []
    prefixes = metric_prefixes(task.validation_splits)
    for prefix, split in zip(prefixes, task.validation_splits, strict=True):
        results += _split_results(card, task, split, "eval", prefix)
    prefixes = metric_prefixes(task.test_splits, "test")
    for prefix, split in zip(prefixes, task.test_splits, strict=True):
        results += _split_results(card, task, split, "test", prefix)
    return results


def _split_results(
    card: RunCard, task: Task, split: str, metric_key_prefix: str, prefix: str
) -> list[EvalResult]:
    """Return the metrics on a split, none if it was not complete.

    The data set has its name on the Hub only if the rows are those of the Hub.

    Args:
        card: Of the run.
        task: Of the run.
        split: Name of the split.
        metric_key_prefix: Of the results: "eval" or "test".
        prefix: Of the split's metrics.
    """
    data = (card.run.results.get("splits") or {}).get(split) or {}
    if data.get("partial") is not False:
        return []
    is_hub_dataset = card.reads_hub_dataset or data.get("published") is not None

    results = []
    for metric in ("loss", *figure_names(task.metrics, [split])):
        key = f"{metric_key_prefix}_{with_prefix(prefix, metric)}"
        result = EvalResult(
            task_type=card.pipeline,
            dataset_type=(is_hub_dataset and task.hub_dataset) or task.name,
            dataset_name=task.name,
            dataset_config=task.hub_subset if is_hub_dataset else None,
            dataset_split=split,
            metric_type=metric,
            metric_name=metric.replace("_", " "),
            metric_value=card.run.results.get(key),
        )
        results.append(result)
    return results
