"""The row of CoNLL-2003 English named entities (Tjong Kim Sang and De Meulder 2003)."""

from __future__ import annotations

from types import MappingProxyType

from bert_recipes.tasks.task import Task


CONLL_TASK = Task(
    name="conll2003",
    kind="token_classification",
    text_columns=("tokens",),
    label_column="ner_tags",
    labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
    metrics=("entities",),
    best_metric="f1",
    # Parquet; the older eriktks/conll2003 is a loading script, which `datasets` no longer runs. The Hub's rows bear no
    # document marks: the paper's maximal document context needs the four-column files.
    hub_dataset="lhoestq/conll2003",
    local_name="conll2003",
    local_files=MappingProxyType(
        {"train": ("train.txt",), "validation": ("validation.txt", "valid.txt", "dev.txt"), "test": ("test.txt",)}
    ),
    published_rows=MappingProxyType({"train": 14041, "validation": 3250, "test": 3453}),
    licence="Reuters corpus, research only",
    source="CoNLL-2003, Tjong Kim Sang and De Meulder 2003; Hub data set lhoestq/conll2003",
)
