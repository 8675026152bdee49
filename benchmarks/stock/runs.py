"""Both sides of a comparison: what is not finished is run, each run in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.files import write_json
from bert_recipes.sweeps.sweep import FineTuning, claimed_folder, finetuning_command, hashes_of_files
from bert_recipes.tasks.rows import get_task
from stock.plan import LOSS_FLAGS, ComparedTask, flags_of, remove_flags
from stock.record import SIDES, make_record


PLAN_FILE = "comparison_plan.json"


@dataclass(frozen=True)
class Comparison:
    """One task on both sides.

    Attributes:
        name: The task.
        plan: Its seeds, limits and settings.
        root: Folder of recipes/ and benchmarks/.
        folder: Folder of all comparisons; the runs lie in FOLDER/<task>, the result in FOLDER/<task>.json.
        flags: What the user gave, for both sides; it wins over the plan.
    """

    name: str
    plan: ComparedTask
    root: Path
    folder: Path
    flags: Sequence[str]

    def run(self, seeds: Sequence[int] | None = None) -> dict[str, Any]:
        """Run what is not finished and write FOLDER/<task>.json.

        Args:
            seeds: Instead of the plan's.

        Returns:
            What was written.
        """
        config = self.root / "recipes" / "configs" / "finetune" / f"{self.plan.config}.yaml"
        base = ["--config", os.path.relpath(config), "--task", self.name, "--disable_tqdm", "true"]
        flags = base + flags_of(self.plan.flags, self.flags)
        settings = {"flags": flags, "files": hashes_of_files(base)}
        losses = self._loss_flags()
        chosen = tuple(self.plan.seeds if seeds is None else seeds)
        with claimed_folder(self.folder / self.name, PLAN_FILE, settings | {"loss_flags": losses}):
            found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            # Side by side, seed by seed: what else the machine does meets both.
            for seed in chosen:
                for side in SIDES:
                    found[side].append(self._run_side(side, f"seed-{seed}", [*flags, "--seed", str(seed)]))
            histories = {}
            for side in SIDES:
                extra = ["--same_batches", "true"] if side == "stock" else []
                self._run_side(side, "losses", [*base, *losses, *extra])
                histories[side] = read_losses(self._folder(side, "losses"))
        record = make_record(self.name, self.plan, chosen, found, histories, flags, losses)
        record["date"] = time.strftime("%Y-%m-%d")
        write_json(self.folder / f"{self.name}.json", record)
        return record

    def _loss_flags(self) -> list[str]:
        batch = str(self.plan.loss_batch)
        sizes = {"global_train_batch_size": batch, "per_device_train_batch_size": batch}
        fixed = sizes | dict(LOSS_FLAGS)
        return flags_of({**self.plan.flags, **fixed}, remove_flags(self.flags, fixed))

    def _folder(self, side: str, name: str) -> Path:
        return self.folder / self.name / f"{side}-{name}"

    def _run_side(self, side: str, name: str, flags: Sequence[str]) -> dict[str, Any]:
        """One run; its weights are not kept."""
        script = self.root / ("recipes/finetune.py" if side == "ours" else "benchmarks/finetune_stock.py")
        own = ["--save_strategy", "no"]  # as the other side
        own += ["--decoder", "offsets"] if side == "stock" and self._is_question_answering else []
        folder = self._folder(side, name)
        results = FineTuning(finetuning_command(script, None), tuple(flags)).run(folder, own)
        for weights in folder.glob("*.safetensors"):
            weights.unlink()
        return results

    @property
    def _is_question_answering(self) -> bool:
        return get_task(self.name).kind == "question_answering"


def read_losses(folder: Path) -> list[float]:
    """Training loss of each step, from the history that a run leaves."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [line["loss"] for line in history if "loss" in line]
