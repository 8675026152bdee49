"""Documents are tested too: what they name must be there."""

import ast
import importlib
import re

import pytest


def test_every_function_and_test_named_in_the_rules_exists(repository):
    text = (repository / "docs" / "rules.md").read_text(encoding="utf-8")
    functions = set(re.findall(r"`(bert_recipes[\w.]*):(\w+)`", text))
    tests = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))
    assert len(functions) >= 15
    assert len(tests) >= 25
    for module, name in functions:
        assert hasattr(importlib.import_module(module), name), f"{module}:{name}"
    for file, name in tests:
        tree = ast.parse((repository / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def test_every_row_of_the_rules_names_source_function_and_test(repository):
    text = (repository / "docs" / "rules.md").read_text(encoding="utf-8").split("## Where we differ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| rule", "| ---"))]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert all(cells), row


@pytest.mark.parametrize("size", ["base", "large"])
def test_the_parameter_totals_in_the_rules_are_the_models(repository, size):
    import torch

    from bert_recipes.models.bert import BertForPreTraining
    from bert_recipes.models.sizes import count_parameters, pretraining_config

    text = (repository / "docs" / "rules.md").read_text(encoding="utf-8")
    for vocab_size in (30_000, 30_522):
        with torch.device("meta"):
            counts = count_parameters(BertForPreTraining(pretraining_config(size, vocab_size=vocab_size)))
        encoder = sum(number for name, number in counts.items() if not name.startswith("pre-training heads"))
        assert f"{encoder:,}" in text
