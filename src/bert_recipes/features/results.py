"""Check the folder of a measurement, and write the table and the files that it leaves there."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from bert_recipes.config import resolved_values, save_config
from bert_recipes.errors import InputError, saving
from bert_recipes.features.extract import choose_device
from bert_recipes.files import write_json
from bert_recipes.run_folder import CONFIG_FILE, RESULTS_FILE
from bert_recipes.training.speed import describe_machine


def check_results_folder(
    folder: Path, args: Any, results_file: str = RESULTS_FILE, config_file: str = CONFIG_FILE
) -> None:
    """Refuse a folder with results of other settings: they would be written over.

    Call it before the measurement, which may take hours.
    """
    file = folder / config_file
    if not (folder / results_file).is_file() or not file.is_file():
        return
    settings = resolved_values(args)
    settings_before = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    defaults = {field.name: field.default for field in fields(args)}
    changed = []
    for name in dict.fromkeys([*settings_before, *settings]):
        default = defaults.get(name)
        before = settings_before.get(name, default)
        if name != "output_dir" and settings.get(name, default) != before:
            changed.append(name)
    if changed:
        raise InputError(
            f"output_dir {folder} holds results of other settings ({', '.join(changed[:3])}); give "
            "another --output_dir, or move them away"
        )


def save_results(folder: Path, results: Mapping[str, Any], table: str, args: Any) -> None:
    """Write all_results.json, with machine and date, table.md and run.yaml."""
    record = dict(results)
    record["machine"] = describe_machine(choose_device(use_cpu=args.use_cpu))
    record["date"] = time.strftime("%Y-%m-%d")
    with saving(folder):
        write_json(folder / RESULTS_FILE, record)
        (folder / "table.md").write_text(table, encoding="utf-8")
        save_config(folder / CONFIG_FILE, args)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; the columns behind the first are numbers."""
    alignments = ["---", *["--:"] * (len(heads) - 1)]
    lines = []
    for cells in (heads, alignments, *rows):
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)
