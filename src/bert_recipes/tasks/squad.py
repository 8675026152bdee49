"""The rows of SQuAD 1.1 (Rajpurkar et al. 2016) and SQuAD 2.0 (Rajpurkar et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bert_recipes.tasks.task import Task


def _squad(name: str, version: str, rows: tuple[int, int], source: str) -> Task:
    files = {"train": (f"train-v{version}.json",), "validation": (f"dev-v{version}.json",)}
    return Task(
        name=name,
        kind="question_answering",
        text_columns=("question", "context"),
        label_column="answers",
        id_column="id",
        # The test set is hidden: nobody but the leaderboard has it.
        test_splits=(),
        metrics=(name,),
        best_metric="f1",
        hub_dataset=f"rajpurkar/{name}",
        local_name="squad",
        local_files=MappingProxyType(files),
        published_rows=MappingProxyType(dict(zip(("train", "validation"), rows, strict=True))),
        licence="CC BY-SA 4.0",
        source=f"{source}; Hub data set rajpurkar/{name}",
    )


SQUAD_TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "squad": _squad("squad", "1.1", (87599, 10570), "SQuAD 1.1, Rajpurkar et al. 2016"),
        "squad_v2": _squad("squad_v2", "2.0", (130319, 11873), "SQuAD 2.0, Rajpurkar et al. 2018"),
    }
)
