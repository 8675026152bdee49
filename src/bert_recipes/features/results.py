"""Write the files that a comparison leaves in its folder."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_recipes.config import save_config
from bert_recipes.errors import saving
from bert_recipes.features.extract import choose_device
from bert_recipes.files import write_json
from bert_recipes.run_folder import CONFIG_FILE, RESULTS_FILE
from bert_recipes.training.speed import describe_machine


def save_results(folder: Path, results: Mapping[str, Any], table: str, args: Any) -> None:
    """Write all_results.json, with machine and date, table.md and run.yaml."""
    record = dict(results)
    record["machine"] = describe_machine(choose_device(use_cpu=args.use_cpu))
    record["date"] = time.strftime("%Y-%m-%d")
    with saving(folder):
        write_json(folder / RESULTS_FILE, record)
        (folder / "table.md").write_text(table, encoding="utf-8")
        save_config(folder / CONFIG_FILE, args)
