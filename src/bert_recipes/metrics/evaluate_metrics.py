"""The metrics as `evaluate.Metric` classes, which take and give what evaluate's own do and need no Hub.

Nothing of the package imports this module: training takes the pure functions.

Example:
    >>> from bert_recipes.metrics.evaluate_metrics import GlueMetric
    >>> GlueMetric("mrpc").compute(predictions=[0, 1], references=[0, 1])  # doctest: +SKIP
    {'accuracy': 1.0, 'f1': 1.0}
    >>> evaluate.load("src/bert_recipes/metrics/evaluate_metrics.py", "mrpc")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import datasets
import evaluate

from bert_recipes.errors import InputError
from bert_recipes.metrics import entities, registry, squad


_PAPERS = {
    "squad": "Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text",
    "squad_v2": "Rajpurkar et al. 2018, Know What You Don't Know: Unanswerable Questions for SQuAD",
    "entities": "Tjong Kim Sang and De Meulder 2003, Introduction to the CoNLL-2003 Shared Task",
}
_GLUE_PAPER = "Wang et al. 2019, GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding"
_GLUE: Mapping[str, tuple[str, ...]] = {
    "cola": ("matthews_correlation",),
    "sst2": ("accuracy",),
    "mrpc": ("accuracy", "f1"),
    "stsb": ("pearson", "spearmanr"),
    "qqp": ("accuracy", "f1"),
    "mnli": ("accuracy",),
    "mnli_matched": ("accuracy",),
    "mnli_mismatched": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
    "hans": ("accuracy",),
    "ax": ("matthews_correlation",),
}


# Keep it the first class of the file: evaluate.load takes the first one that it finds.
class NamedMetric(evaluate.Metric):
    """Any metric by its configuration name: a GLUE task, or a name that `bert_recipes.metrics.compute` knows.

    Args:
        config_name: "mrpc", "f1_macro", "squad_v2", ...; further arguments are those of `evaluate.Metric`.

    Raises:
        InputError: If the name is none of `CONFIGS`.
    """

    # Configuration name -> the metrics that it stands for.
    CONFIGS: ClassVar[Mapping[str, tuple[str, ...]]] = {**_GLUE, **{name: (name,) for name in registry.METRIC_NAMES}}

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What is measured."""
        if self.config_name not in self.CONFIGS:
            raise InputError(
                f"{type(self).__name__}: config_name {self.config_name!r}; allowed are {', '.join(self.CONFIGS)}"
            )
        return self.CONFIGS[self.config_name]

    def _info(self) -> evaluate.MetricInfo:
        names = self.metric_names
        return evaluate.MetricInfo(
            description=f"{', '.join(names)}, as bert_recipes.metrics computes it.",
            citation=_PAPERS.get(names[0], _GLUE_PAPER if self.config_name in _GLUE else ""),
            inputs_description="",
            features=_features(names[0]),
        )

    def _compute(self, predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> dict[str, Any]:
        """Compute the figures.

        Args:
            predictions: As the features say.
            references: As the features say.
            no_answer_threshold: squad_v2 only: the answer is "" where no_answer_probability is greater.
        """
        match self.metric_names:
            case ("squad",):
                return squad.squad_scores(_gold(references), _by_id(predictions, "prediction_text"))
            case ("squad_v2",):
                odds = _by_id(predictions, "no_answer_probability")
                answers = _by_id(predictions, "prediction_text")
                return squad.squad_v2_scores(_gold(references), answers, odds, no_answer_threshold)
            case ("entities",):
                return _seqeval_report(references, predictions)
            case names:
                return registry.compute(names, predictions, references)


class GlueMetric(NamedMetric):
    """The figures of a GLUE task, in place of `evaluate.load("glue", config_name)`.

    Predictions and references are class numbers, for stsb numbers (kept in 64 bits; evaluate's own rounds to 32).
    Beside evaluate's names it knows "ax".
    """

    CONFIGS = _GLUE


class SquadMetric(NamedMetric):
    """Exact match and F1 of SQuAD 1.1, in place of `evaluate.load("squad")`.

    Predictions: {"id", "prediction_text"}; references: {"id", "answers": {"text": [...], "answer_start": [...]}}.
    """

    CONFIGS: ClassVar[Mapping[str, tuple[str, ...]]] = {"default": ("squad",)}


class SquadV2Metric(NamedMetric):
    """The figures of SQuAD 2.0, in place of `evaluate.load("squad_v2")`.

    As `SquadMetric`, the predictions with "no_answer_probability" (or odds; kept in 64 bits). `compute` takes
    no_answer_threshold, 1.0 where it is not given, as the official script does.
    """

    CONFIGS: ClassVar[Mapping[str, tuple[str, ...]]] = {"default": ("squad_v2",)}


class EntityMetric(NamedMetric):
    """Entity figures, in place of `evaluate.load("seqeval")`: lists of tags in, its report out.

    The report: type -> {precision, recall, f1, number}, overall_precision, overall_recall, overall_f1,
    overall_accuracy.
    """

    CONFIGS: ClassVar[Mapping[str, tuple[str, ...]]] = {"default": ("entities",)}


class MultiLabelMetric(NamedMetric):
    """f1_micro, f1_macro and subset_accuracy of rows that may have any number of classes: one 0 or 1 for each."""

    CONFIGS: ClassVar[Mapping[str, tuple[str, ...]]] = {"default": ("multi_label",)}


def _features(name: str) -> datasets.Features | list[datasets.Features]:
    """Types of the inputs; several where a metric takes several."""
    if name in ("squad", "squad_v2"):
        prediction = {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}
        if name == "squad_v2":
            prediction["no_answer_probability"] = datasets.Value("float64")
        answers = {"text": datasets.Value("string"), "answer_start": datasets.Value("int32")}
        reference = {"id": datasets.Value("string"), "answers": datasets.Sequence(answers)}
        return datasets.Features({"predictions": prediction, "references": reference})
    flags, classes = datasets.Sequence(datasets.Value("int64")), datasets.Value("int64")
    kinds = {
        "pearson": [datasets.Value("float64")],
        "spearmanr": [datasets.Value("float64")],
        "entities": [datasets.Sequence(datasets.Value("string", id="label"), id="sequence")],
        "multi_label": [flags],
        "f1": [classes],
        "matthews_correlation": [classes],
    }.get(name, [classes, flags])
    options = [datasets.Features({"predictions": kind, "references": kind}) for kind in kinds]
    return options[0] if len(options) == 1 else options


def _by_id(rows: list[dict[str, Any]], column: str) -> dict[str, Any]:
    return {row["id"]: row[column] for row in rows}


def _gold(references: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {row["id"]: row["answers"]["text"] for row in references}


def _seqeval_report(references: list[list[str]], predictions: list[list[str]]) -> dict[str, Any]:
    by_type = entities.count_entities(references, predictions)
    every = entities.total_counts(by_type)
    report: dict[str, Any] = {
        name: {"precision": counts.precision, "recall": counts.recall, "f1": counts.f1, "number": counts.gold}
        for name, counts in by_type.items()
    }
    report |= {"overall_precision": every.precision, "overall_recall": every.recall, "overall_f1": every.f1}
    return report | {"overall_accuracy": entities.word_accuracy(references, predictions)}
