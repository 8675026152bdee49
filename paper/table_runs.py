"""The runs of tables: those with the same settings are one, and finished ones are not run again."""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pair_task import PairTaskArguments, write_pair_task
from table import UNTRAINED, Column, Row, Table

from bert_recipes.errors import InputError
from bert_recipes.files import lock_run, read_json_object, replace_nonfinite, write_json
from bert_recipes.run_folder import RESULTS_FILE, STATE_FILE, TASK_FILE
from bert_recipes.sweeps.sweep import RunLauncher, as_flags, figure_of


RECIPES = Path(__file__).resolve().parents[1] / "recipes"
# Configurations as they were when the tables were made, where the recipes' have changed since.
KEPT_CONFIGS = Path(__file__).with_name("configs")
# The runs of a folder and their figures: what is finished elsewhere is finished here.
RUNS_FILE = "runs.json"
# Before next or order: the task of telling the store's pairs (pair_task.py).
PAIRS = "pairs_"


# Settings by which a row of a table chooses what it is trained on.
OF_TRAINING_ROWS = {"max_train_examples", "data_dir"}


class Cell(NamedTuple):
    """The run of a row, a column and a seed, and its figure."""

    run: Mapping[str, Any]
    value: float  # NaN where training diverged
    replicates: Sequence[float] = ()  # of the jackknife over its rows; none where the run left none
    rows: Sequence[str] = ()  # hashes of the rows that it was measured on
    trained_on: str | None = None  # hash of the rows that it was trained on, where it is known


class Runs:
    """The runs of tables in one folder.

    A run is known by a hash of its settings, a fine-tuning one also by that of its checkpoint.
    """

    def __init__(
        self, folder: Path, store: str, fingerprint: str, data_dir: str | None = None
    ) -> None:
        """Read what is finished; `fingerprint` is that of the store's text."""
        self.folder = folder
        self.store = store
        self.fingerprint = fingerprint
        self.data_dir = data_dir
        lock_run(folder, patience=0)
        file = folder / RUNS_FILE
        self.records: dict[str, dict[str, Any]] = read_json_object(file) if file.is_file() else {}
        for record in self.records.values():
            if not isinstance(record, dict) or not isinstance(record.get("figures"), dict):
                raise InputError(f"{file} does not hold the runs of tables; give another folder")

    # Keys

    def checkpoint_key(self, row: Row, seed: int) -> str:
        """Return the hash of the run that trains a row's model."""
        settings = {
            "recipe": "pretrain",
            "store": self.fingerprint,
            **row.pretrain,
            "seed": str(seed),
        }
        if row.teacher is not None:
            settings["teacher"] = self.checkpoint_key(row.teacher, seed)
        return _hash(settings)

    def figure_key(self, row: Row, column: Column, seed: int) -> str | None:
        """Return the hash of the run that has a row's figure in a column, if there is one."""
        if column.mean_of:
            return None
        if row.ensemble:
            keys = [str(self.figure_key(*member)) for member in _members(row, column)]
            return _hash({"recipe": "ensemble", "members": " ".join(keys)})
        model = self.checkpoint_key(row, seed)
        if column.recipe == "pretrain":
            return None if row.checkpoint else model
        if row.checkpoint:
            model += f"/checkpoint-{row.checkpoint}"
        return _hash({"recipe": column.recipe, "model": model, **self._settings(row, column, seed)})

    def _settings(self, row: Row, column: Column, seed: int) -> dict[str, str]:
        """Return the settings of the run that measures a row's model in a column."""
        if column.features is not None:
            return {**column.features, "seeds": str(seed)}
        if column.task is None:  # the held-out masks do not depend on a seed
            return {"store": self.fingerprint, **(column.evaluate or {})}
        config = {"config": f"finetune/{column.config}", "task": column.task}
        return {**config, **column.finetune, **row.finetune, "seed": str(seed)}

    # Figures

    def cell(self, row: Row, column: Column, seed: int) -> Cell | None:
        """Return the run and figure of a cell; None before its run."""
        if column.mean_of:
            return _mean_cell([self.cell(row, averaged, seed) for averaged in column.mean_of])
        key = self.figure_key(row, column, seed)
        if key is None or key not in self.records:
            return None
        run = self.records[key]
        value = figure_of(run["figures"], f"eval_{column.metric}")
        if value is None:
            raise InputError(f"column {column.name}: no metric {column.metric} in the run {key}")
        replicates = (run["figures"].get("jackknife") or {}).get(column.metric) or []
        if None in replicates:  # undefined without one of the groups
            replicates = []
        rows = list(run.get("sha256", {}).values())
        # A table may ask what more rows to train on give.
        has_own_rows = not OF_TRAINING_ROWS.isdisjoint(row.finetune)
        trained_on = None if has_own_rows else run.get("train_sha256")
        return Cell({"key": key, **run}, value, replicates, rows, trained_on)

    def missing(self, table: Table) -> Iterator[tuple[Row, Column, int]]:
        """Yield the cells whose run is not finished, seed by seed: whole tables come early."""
        for seed in table.seeds:
            for row in table.rows:
                for column in table.columns:
                    key = self.figure_key(row, column, seed)
                    if key is not None and key not in self.records:
                        yield row, column, seed

    # Runs

    def measure(self, row: Row, column: Column, seed: int) -> None:
        """Measure a cell, after the pre-training of its row where that is not done."""
        key = str(self.figure_key(row, column, seed))
        if row.ensemble:
            self._join(row, column, key)
            return
        needs_weights = key != self.checkpoint_key(row, seed)
        model = self._pretrain(row, seed, needs_weights=needs_weights)
        if not needs_weights:
            return
        if row.checkpoint:
            model = regular_checkpoint(model, int(row.checkpoint))
        settings = {"model_name_or_path": str(model), **self._settings(row, column, seed)}
        settings.pop("store", None)
        folder = self.folder / key
        if column.recipe == "evaluate_checkpoint":
            settings["results_file"] = str(folder / RESULTS_FILE)
        self._run(column.recipe, key, settings)
        for path in folder.glob("*.safetensors"):  # figures and predictions stay
            path.unlink()

    def _pretrain(self, row: Row, seed: int, *, needs_weights: bool) -> Path:
        """Return the folder of a row's model, trained where that, or its weights, are not there."""
        key = self.checkpoint_key(row, seed)
        folder = self.folder / key
        has_weights = (folder / "config.json").is_file()
        if key not in self.records or (needs_weights and not has_weights):
            self._run("pretrain", key, self._pretraining_settings(row, seed))
        return folder

    def _pretraining_settings(self, row: Row, seed: int) -> dict[str, str]:
        """Return the settings of a row's pre-training, after that of its teacher."""
        settings = {**row.pretrain, "seed": str(seed)}
        if row.teacher is not None:
            settings["teacher"] = str(self._pretrain(row.teacher, seed, needs_weights=True))
        return settings

    def _join(self, row: Row, column: Column, key: str) -> None:
        """Measure the ensemble of a row's models, after all of them."""
        # Imported only now, for it takes seconds.
        from ensembles import join_answers

        folders = []
        for member in _members(row, column):
            folder = self.folder / str(self.figure_key(*member))
            if not (folder / TASK_FILE).is_file():  # predictions are needed, not figures alone
                self.measure(*member)
            folders.append(folder)
        start = time.monotonic()
        results = join_answers(folders, self.folder / key)
        settings = {"members": " ".join(folder.name for folder in folders)}
        self.record(key, "ensemble", settings, results, time.monotonic() - start)

    def _command(
        self, recipe: str, settings: Mapping[str, str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the script of a recipe and its flags: the settings, and where its data is."""
        flags = {name: "null" if value is None else value for name, value in settings.items()}
        if "config" in flags:
            flags["config"] = str(_config_file(flags["config"]))
        task = flags.get("task", "")
        if task.startswith(PAIRS):
            del flags["task"]
            flags["task_file"] = str(self._pair_task(task.removeprefix(PAIRS)))
        elif recipe in ("pretrain", "evaluate_checkpoint"):
            flags["store"] = self.store
        elif self.data_dir is not None:
            flags["data_dir"] = self.data_dir
        script = RECIPES / f"{recipe}.py"
        return (sys.executable, str(script)), tuple(as_flags(flags))

    def _run(self, recipe: str, key: str, settings: Mapping[str, str]) -> None:
        command, flags = self._command(recipe, settings)
        launcher = RunLauncher(command, flags, keeps_checkpoints="save_steps" in settings)
        start = time.monotonic()
        results = launcher.run(self.folder / key, [])
        self.record(key, recipe, settings, results, time.monotonic() - start)

    def record(
        self,
        key: str,
        recipe: str,
        settings: Mapping[str, str],
        results: Mapping[str, Any],
        seconds: float,
    ) -> None:
        """Write what a finished run has measured into runs.json."""
        figures: dict[str, Any] = {}
        for name, value in results.items():
            if isinstance(value, int | float | None):  # None: undefined, as where it diverged
                figures[name] = value
        for name in ("intervals", "jackknife"):
            figures[name] = results.get(name)
        splits = results.get("splits") or {}
        hashes = {}
        for name, split in splits.items():
            if name.startswith("validation"):
                hashes[name] = split["sha256"]
        self.records[key] = {
            "recipe": recipe,
            "settings": dict(settings),
            "seconds": results.get("train_seconds") or seconds,
            "figures": replace_nonfinite(figures),
            "sha256": hashes,  # of the rows that it was measured on
            "train_sha256": splits.get("train", {}).get("sha256"),
            "machine": results.get("machine"),
            "date": time.strftime("%Y-%m-%d"),
        }
        write_json(self.folder / RUNS_FILE, self.records)

    def _pair_task(self, label: str) -> Path:
        """Return the task file of the store's pairs under a label, made when it is first needed."""
        folder = self.folder / "tasks" / self.fingerprint / label
        if not (folder / TASK_FILE).is_file():
            write_pair_task(PairTaskArguments(self.store, str(folder), label))
        return folder / TASK_FILE

    # Estimates

    def estimate(self, tables: Sequence[Table]) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Estimate what is missing by a few real steps of each kind of run.

        Yields:
            The name of the kind, how many such runs there are, and the numbers of one's `Estimate`.
        """
        seed = tables[0].seeds[0]
        for runs in self._missing_kinds(tables, seed):
            row, column = runs[0]
            stage = "pre-training" if column is None else column.name
            name = f"{row.name}: {stage}"
            estimate = self._estimate_run(name, row, column, seed)
            yield name, len(runs), estimate

    def _missing_kinds(
        self, tables: Sequence[Table], seed: int
    ) -> list[list[tuple[Row, Column | None]]]:
        """Group the missing runs that train by what takes the same time and memory.

        Those without a column are pre-training; evaluations do not count.
        """
        runs: dict[str, tuple[Row, Column | None]] = {}
        for table in tables:
            for row, column, run_seed in self.missing(table):
                key = self.checkpoint_key(row, run_seed)
                if key not in self.records and not row.untrained and not row.ensemble:
                    runs.setdefault(key, (row, None))
                if column.recipe == "finetune" and not row.ensemble:
                    runs.setdefault(str(self.figure_key(row, column, run_seed)), (row, column))
        kinds: dict[str, list[tuple[Row, Column | None]]] = {}
        for row, optional_column in runs.values():
            cost = dict(row.pretrain)
            if optional_column is not None:
                # Fine-tuning takes what the model's size takes, whatever it was trained on.
                cost = self._settings(row, optional_column, seed)
                for name in ("config", "size", "objective"):
                    cost[f"model_{name}"] = str(row.pretrain.get(name))
            kinds.setdefault(_hash(cost), []).append((row, optional_column))
        return list(kinds.values())

    def _estimate_run(
        self, name: str, row: Row, column: Column | None, seed: int
    ) -> dict[str, Any]:
        """Take a few steps of a run; the models that it starts from are made without training."""
        untrained = _untrained(row)
        if column is None:
            recipe = "pretrain"
            settings = self._pretraining_settings(replace(row, teacher=untrained.teacher), seed)
        else:
            recipe = column.recipe
            model = self._pretrain(untrained, seed, needs_weights=True)
            settings = {"model_name_or_path": str(model), **self._settings(row, column, seed)}
        file = self.folder / "estimate.json"
        flags = {
            "estimate": "true",
            "estimate_file": str(file),
            "output_dir": str(self.folder / "estimate"),
        }
        command, run_flags = self._command(recipe, settings)
        command += (*run_flags, *as_flags(flags))
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise InputError(f"{name}: no estimate; the reason is above")
        return read_json_object(file)


def _members(row: Row, column: Column) -> list[tuple[Row, Column, int]]:
    """Return the cells whose models answer together in an ensemble."""
    member = replace(row, ensemble=())
    return [(member, column, seed) for seed in row.ensemble]


def _mean_cell(optional_cells: Sequence[Cell | None]) -> Cell | None:
    """Return the mean of figures, which has no run of its own; None where one is missing.

    The rows of several tasks are left out group by group at once: they are independent, and so are
    their deviations.
    """
    cells = [cell for cell in optional_cells if cell is not None]
    if len(cells) < len(optional_cells):
        return None
    replicates: list[float] = []
    if len({len(cell.replicates) for cell in cells}) == 1:
        groups = zip(*(cell.replicates for cell in cells), strict=True)
        replicates = [statistics.fmean(group) for group in groups]
    rows: list[str] = []
    for cell in cells:
        rows.extend(cell.rows)
    training_rows = [cell.trained_on for cell in cells if cell.trained_on is not None]
    # Runs of earlier versions do not say it.
    trained_on = " ".join(training_rows) if len(training_rows) == len(cells) else None
    return Cell({}, statistics.fmean(cell.value for cell in cells), replicates, rows, trained_on)


def _untrained(row: Row) -> Row:
    """Return a row whose model, and its teacher, are not trained."""
    teacher = None if row.teacher is None else _untrained(row.teacher)
    return replace(row, pretrain={**row.pretrain, **UNTRAINED}, teacher=teacher)


def regular_checkpoint(run: Path, number: int) -> Path:
    """Return one of a run's regular checkpoints, from 1; a stopped run may have others beside."""
    state = read_json_object(run / STATE_FILE)
    step = min(number * int(state["save_steps"]), int(state["max_steps"]))
    return run / f"checkpoint-{step}"


def _config_file(name: str) -> Path:
    """Return the file of a configuration, as the tables were made with it."""
    kept = KEPT_CONFIGS / f"{name}.yaml"
    return kept if kept.is_file() else RECIPES / "configs" / f"{name}.yaml"


def _hash(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
