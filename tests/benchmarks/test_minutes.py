"""The rows of the study of minutes are settings of recipes/pretrain.py, each under a name of its
own.
"""

from bert_recipes.config import field_types
from bert_recipes.training import arguments
from bert_recipes.yaml_files import read_tree


def test_every_row_changes_settings_that_there_are(repository):
    rows, _ = read_tree(repository / "benchmarks" / "minutes.yaml")  # refuses a name twice
    names = set()
    for kind in ("ModelArguments", "DataArguments", "PreTrainingArguments", "PhaseArguments"):
        names |= set(field_types(getattr(arguments, kind)))
    for row, settings in rows.items():
        assert set(settings) <= names, row
    assert rows["budget"] == {}
