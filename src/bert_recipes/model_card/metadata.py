"""The head of a card: what the Hub reads of it."""

from __future__ import annotations

import math
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from bert_recipes.hub_access import is_hub_name
from bert_recipes.model_card import finetuning_sections
from bert_recipes.model_card.energy_section import co2_grams, energy
from bert_recipes.model_card.facts import GIVEN, RESULTS, TASK, Fact, RunFiles
from bert_recipes.model_card.usage import pipeline_of


# Figure -> the Hub's word for the metric, and how the card calls it.
_PRETRAINING_FIGURES = {
    "mlm_loss": ("loss", "masked-LM loss, nats"),
    "perplexity": ("perplexity", "masked-LM perplexity"),
    "mlm_accuracy": ("accuracy", "masked-LM accuracy"),
}
_NEXT_SENTENCE_FIGURES = {
    "nsp_loss": ("loss", "next-sentence loss, nats"),
    "nsp_accuracy": ("accuracy", "next-sentence accuracy"),
}
_METRICS = {"entities": "seqeval", "pearson": "pearsonr", "multi_label": "f1"}
_CO2_DIGITS = 4


def card_data(files: RunFiles, name: str) -> ModelCardData:
    """The head.

    Args:
        files: Of the run.
        name: Of the model.

    Raises:
        InputError: A file of the run is damaged.
    """
    results = _task_results(files) if files.is_fine_tuned else _pretraining_results(files)
    given = {key: files.value(GIVEN, key) for key in ("license", "license_name", "license_link", "language")}
    for key, value in given.items():
        if value is not None:
            files.fact(f"{key} in the head", GIVEN, key)
    return ModelCardData(
        **given,
        library_name="transformers",
        pipeline_tag=_pipeline(files),
        tags=["bert", "bert-recipes"],
        base_model=_base_model(files),
        datasets=_datasets(files),
        metrics=_metric_names(files),
        co2_eq_emissions=_emissions(files),
        model_name=name if results else None,
        eval_results=results or None,
    )


def _pipeline(files: RunFiles) -> str:
    """The Hub's word for what the model does: of a task by its kind, else what pre-training teaches."""
    name = pipeline_of(files)
    files.fact("pipeline in the head", TASK, "kind", lambda _: name)
    return name


def _base_model(files: RunFiles) -> str | None:
    """The Hub's name of the checkpoint that the run began with; a folder has none."""
    if files.value(RESULTS, "base_model/is_local") is not False:
        return None
    name = files.fact("base model in the head", RESULTS, "base_model/name", str)
    return name.shown if name is not None and is_hub_name(name.shown) else None


def _datasets(files: RunFiles) -> list[str] | None:
    """Data sets of the Hub that were read from there."""
    found: list[Fact | None] = []
    if files.is_fine_tuned and finetuning_sections.from_hub(files):
        found.append(files.fact("data set in the head", TASK, "hub_dataset", str))
    for split in files.names(RESULTS, "data/sources"):
        found.append(files.fact("data set in the head", RESULTS, f"data/sources/{split}/dataset", str))
    names = [fact.shown for fact in found if fact is not None]
    return list(dict.fromkeys(names)) or None


def _metric_names(files: RunFiles) -> list[str] | None:
    """The metrics in the Hub's words."""
    if not files.is_fine_tuned:
        measured = files.value(RESULTS, "eval_mlm_loss") is not None
        return ["perplexity", "accuracy"] if measured else None
    keys = [f"metrics/{number}" for number in files.names(TASK, "metrics")] or ["metrics"]
    found = [files.fact("metric in the head", TASK, key, lambda name: _METRICS.get(name, name)) for key in keys]
    return [fact.shown for fact in found if fact is not None] or None


def _emissions(files: RunFiles) -> dict[str, Any] | None:
    """Grams of CO2 with where and how, as the Hub shows them."""
    grams = co2_grams(files, lambda value: f"{value:.{_CO2_DIGITS}g}")
    if grams is None:
        return None
    _, how = energy(files)
    country = files.fact("country in the head", RESULTS, "energy/country_iso_code") or files.fact(
        "country in the head", GIVEN, "country_iso_code"
    )
    machine = files.fact("GPU in the head", RESULTS, "machine/gpu") or files.fact(
        "processor in the head", RESULTS, "machine/processor"
    )
    facts = {
        "emissions": float(grams.shown),
        "source": f"an estimate: {how}",
        "training_type": "fine-tuning" if files.is_fine_tuned else "pre-training",
        "geographical_location": None if country is None else country.shown,
        "hardware_used": None if machine is None else machine.shown,
    }
    return {name: value for name, value in facts.items() if value is not None}


# Results


def _number(files: RunFiles, name: str, key: str) -> float | int | None:
    """A figure in full, as the head gives it; None where it is missing or not defined."""
    value = files.value(RESULTS, key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    files.fact(f"{name} in the head", RESULTS, key, repr)
    return value


def _pretraining_results(files: RunFiles) -> list[EvalResult]:
    """Figures on the held-out documents."""
    dataset = _held_out(files)
    results = []
    for task, task_name, figures in (
        ("fill-mask", "Masked language modelling", _PRETRAINING_FIGURES),
        ("text-classification", "Next sentence prediction", _NEXT_SENTENCE_FIGURES),
    ):
        for key, (metric, shown) in figures.items():
            value = _number(files, shown, f"eval_{key}")
            if value is not None:
                results.append(
                    EvalResult(
                        task_type=task,
                        task_name=task_name,
                        metric_type=metric,
                        metric_name=shown,
                        metric_value=value,
                        **dataset,
                    )
                )
    return results


def _held_out(files: RunFiles) -> dict[str, Any]:
    """What the held-out documents are called: a data set of the Hub, or text that its store's hash identifies."""
    # Without sources of its own the held-out part was taken from those of training.
    sources = files.names(RESULTS, "data/sources")
    place = f"data/sources/{'validation' if 'validation' in sources else 'train'}"
    name = files.fact("data set of the results", RESULTS, f"{place}/dataset", str)
    if name is not None:
        config = files.fact("configuration of the results", RESULTS, f"{place}/config", str)
        return {
            "dataset_type": name.shown,
            "dataset_name": f"held-out documents of {name}",
            "dataset_config": None if config is None else config.shown,
        }
    store = files.fact("store of the results", RESULTS, "data/fingerprint", lambda value: value[:16])
    return {
        "dataset_type": "text",
        "dataset_name": f"held-out documents of the store {store}" if store else "held-out documents",
        "dataset_split": "validation",
    }


def _task_results(files: RunFiles) -> list[EvalResult]:
    """Figures on the validation splits that are whole: others are no figures of the data set."""
    task = files.fact("task of the results", TASK, "name", str)
    if task is None:
        return []
    results = []
    for split, figure, key in finetuning_sections.figures(files):
        value = _number(files, f"{figure} on {split}", key)
        if value is None or files.value(RESULTS, f"splits/{split}/partial") is not False:
            continue
        dataset, config = _measured_on(files, split)
        results.append(
            EvalResult(
                task_type=pipeline_of(files),
                dataset_type=task.shown if dataset is None else dataset.shown,
                dataset_name=task.shown,
                dataset_config=None if config is None else config.shown,
                dataset_split=split,
                metric_type=figure,
                metric_name=figure.replace("_", " "),
                metric_value=value,
            )
        )
    return results


def _measured_on(files: RunFiles, split: str) -> tuple[Fact | None, Fact | None]:
    """The task's data set on the Hub and its configuration; not for files that nothing shows to be its rows."""
    if not finetuning_sections.from_hub(files) and files.value(RESULTS, f"splits/{split}/published") is None:
        return None, None
    dataset = files.fact("data set of the results", TASK, "hub_dataset", str)
    return dataset, files.fact("configuration of the results", TASK, "hub_subset", str)
