"""The row of SWAG (Zellers et al. 2018): which of four endings follows?"""

from __future__ import annotations

from types import MappingProxyType

from bert_recipes.tasks.task import Task


SWAG_TASK = Task(
    name="swag",
    kind="multiple_choice",
    # BERT, Devlin et al. 2019, 4.4: sentence A is the given sentence, sentence B a possible continuation: the start of
    # the second sentence and an ending.
    text_columns=("sent1", "sent2"),
    choice_columns=("ending0", "ending1", "ending2", "ending3"),
    label_column="label",
    hub_dataset="allenai/swag",
    hub_subset="regular",
    local_name="swag",
    local_files=MappingProxyType({"train": ("train.csv",), "validation": ("val.csv",), "test": ("test.csv",)}),
    published_rows=MappingProxyType({"train": 73546, "validation": 20006, "test": 20005}),
    licence="MIT",
    source="SWAG, Zellers et al. 2018; Hub data set allenai/swag, subset regular",
)
