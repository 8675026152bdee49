"""Predictions on disk: one JSON object a line, line k for example k."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bert_recipes.finetuning.kind import Prediction


def write_jsonl(folder: Path, split_name: str, predictions: Sequence[Prediction]) -> Path:
    """Write predictions_<split>.jsonl.

    Args:
        folder: Existing folder.
        split_name: Part of the file's name.
        predictions: In the order of the examples.

    Returns:
        The file. Each line has `idx`, `prediction` and, where there are any, `probabilities` (6 digits).
    """
    path = folder / f"predictions_{split_name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for prediction in predictions:
            file.write(prediction_line(prediction) + "\n")
    return path


def prediction_line(prediction: Prediction) -> str:
    """A prediction as one line of JSON."""
    line: dict[str, object] = {"idx": prediction.idx, "prediction": prediction.value}
    if prediction.probabilities is not None:
        line["probabilities"] = rounded(prediction.probabilities)
    return json.dumps(line, ensure_ascii=False)


def rounded(value: object) -> object:
    """Floats at six digits, in lists and mappings too."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
