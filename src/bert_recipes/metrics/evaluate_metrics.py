"""The metrics as an `evaluate.Metric`, which needs no Hub: the same pure functions behind
evaluate's interface.

Example:
    >>> from bert_recipes.metrics.evaluate_metrics import NamedMetric
    >>> NamedMetric("mrpc").compute(predictions=[0, 1], references=[0, 1])  # doctest: +SKIP
    {'accuracy': 1.0, 'f1': 1.0}
    >>> evaluate.load("src/bert_recipes/metrics/evaluate_metrics.py", "mrpc")  # doctest: +SKIP
"""

from typing import Any

import datasets
import evaluate

from bert_recipes.errors import InputError
from bert_recipes.metrics import entities, squad
from bert_recipes.metrics.classification import METRIC_NAMES, compute


GLUE = {
    **dict.fromkeys(
        ("sst2", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "hans"),
        ("accuracy",),
    ),
    **dict.fromkeys(("mrpc", "qqp"), ("accuracy", "f1")),
    **dict.fromkeys(("cola", "ax"), ("matthews_correlation",)),
    "stsb": ("pearson", "spearmanr"),
}
# Configuration name -> the metrics that it stands for.
CONFIGS = {**GLUE, **{name: (name,) for name in METRIC_NAMES}}


class NamedMetric(evaluate.Metric):
    """Any metric by its configuration name: a GLUE task, or one of `METRIC_NAMES`.

    "squad", "squad_v2" and "entities" take and give what evaluate's own squad, squad_v2 and seqeval
    do.
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in CONFIGS:
            raise InputError(
                f"NamedMetric: config_name {self.config_name!r}; allowed are {', '.join(CONFIGS)}"
            )
        names = CONFIGS[self.config_name]
        return evaluate.MetricInfo(
            description=f"{', '.join(names)}, as bert_recipes.metrics.classification.compute has "
            "it.",
            citation="",
            inputs_description="",
            features=_features(names[0]),
        )

    def _compute(
        self, predictions: Any, references: Any, no_answer_threshold: float = 1.0
    ) -> dict[str, Any]:
        names = CONFIGS[self.config_name]
        if names == ("entities",):
            return _seqeval_report(references, predictions)
        if names[0] not in ("squad", "squad_v2"):
            return compute(names, predictions, references)
        gold = {row["id"]: row["answers"]["text"] for row in references}
        answers = {row["id"]: row["prediction_text"] for row in predictions}
        if names == ("squad",):
            return squad.squad_scores(gold, answers)
        odds = {row["id"]: row["no_answer_probability"] for row in predictions}
        return squad.squad_v2_scores(gold, answers, odds, no_answer_threshold)


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


def _seqeval_report(references: list[list[str]], predictions: list[list[str]]) -> dict[str, Any]:
    scores = entities.entity_scores(references, predictions)
    report: dict[str, Any] = {
        f"overall_{name}": scores.pop(name) for name in ("precision", "recall", "f1", "accuracy")
    }
    for key, value in scores.items():
        name, _, figure = key.rpartition("_")
        report.setdefault(name, {})[figure] = value
    return report
