"""The metrics as an `evaluate.Metric`, which needs no Hub: the same functions, its interface.

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


# Tasks of GLUE with other metrics than accuracy.
_GLUE_METRICS = {
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    "cola": ("matthews_correlation",),
    "ax": ("matthews_correlation",),
    "stsb": ("pearson", "spearmanr"),
}
_BY_ACCURACY = "sst2", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "hans"
# Configuration name -> the metrics that it stands for.
CONFIGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_BY_ACCURACY, ("accuracy",)),
    **_GLUE_METRICS,
    **{name: (name,) for name in (*METRIC_NAMES, "entities", "squad", "squad_v2")},
}


class NamedMetric(evaluate.Metric):
    """Any metric by its configuration name, of `CONFIGS`.

    "squad", "squad_v2" and "entities" take and give what evaluate's own squad, squad_v2 and seqeval
    do; the last also reads BILOU, BMEWO and tags without a letter.
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in CONFIGS:
            raise InputError(
                f"NamedMetric: config_name {self.config_name!r}; allowed are {', '.join(CONFIGS)}"
            )
        names = CONFIGS[self.config_name]
        return evaluate.MetricInfo(
            description=f"{', '.join(names)}, as bert_recipes.metrics has it.",
            citation="",
            inputs_description="",
            features=_features(names[0]),
        )

    def _compute(
        self, predictions: Any, references: Any, no_answer_threshold: float = 1.0
    ) -> dict[str, Any]:
        if self.config_name == "entities":
            return _seqeval_report(references, predictions)
        if self.config_name not in ("squad", "squad_v2"):
            return compute(CONFIGS[self.config_name], predictions, references)
        gold = {row["id"]: row["answers"]["text"] for row in references}
        answers = {row["id"]: row["prediction_text"] for row in predictions}
        if self.config_name == "squad":
            return squad.squad_scores(gold, answers)
        odds = {row["id"]: row["no_answer_probability"] for row in predictions}
        return squad.squad_v2_scores(gold, answers, odds, no_answer_threshold)


def _features(name: str) -> datasets.Features | list[datasets.Features]:
    """Return the types of the inputs; several where a metric takes several."""
    if name in ("squad", "squad_v2"):
        return _squad_features(name)
    number = datasets.Value("float64")
    class_number = datasets.Value("int64")
    flags = datasets.Sequence(class_number)
    tags = datasets.Sequence(datasets.Value("string", id="label"), id="sequence")
    kinds = {
        "pearson": [number],
        "spearmanr": [number],
        "entities": [tags],
        "multi_label": [flags],
        "f1": [class_number],
        "matthews_correlation": [class_number],
    }.get(name, [class_number, flags])
    options = [datasets.Features(predictions=kind, references=kind) for kind in kinds]
    return options[0] if len(options) == 1 else options


def _squad_features(name: str) -> datasets.Features:
    text = datasets.Value("string")
    prediction = {"id": text, "prediction_text": text}
    if name == "squad_v2":
        prediction["no_answer_probability"] = datasets.Value("float64")
    answers = datasets.Sequence({"text": text, "answer_start": datasets.Value("int32")})
    return datasets.Features(predictions=prediction, references={"id": text, "answers": answers})


def _seqeval_report(references: list[list[str]], predictions: list[list[str]]) -> dict[str, Any]:
    """Return the scores in seqeval's form: overall_f1 and so on, and a dictionary for each type."""
    report: dict[str, Any] = {}
    for key, value in entities.entity_scores(references, predictions).items():
        name, _, figure = key.rpartition("_")
        if name:
            report.setdefault(name, {})[figure] = value
        else:
            report[f"overall_{figure}"] = value
    return report
