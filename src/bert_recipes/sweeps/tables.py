"""The tables of a paper as runs: which each row and column needs; runs with the same settings are
one, and finished ones are kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from bert_recipes.config import nearest_name
from bert_recipes.errors import InputError
from bert_recipes.files import lock_run, read_json_object, strict, write_json
from bert_recipes.sweeps.sweep import RESULTS_FILE, TASK_FILE, RunLauncher, as_flags, figure_of
from bert_recipes.training.arguments import ESTIMATE_FILE
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)

EXPECTED = ("must", "should", "report")
# The runs of a folder and their figures: what is finished elsewhere is finished here.
RUNS_FILE = "runs.json"
# Folders of the members and of the ensemble -> its results.
Join = Callable[[Sequence[Path], Path], Mapping[str, Any]]
# Before next or order: the task of telling the store's pairs (recipes/make_pair_task.py).
PAIRS = "pairs_"
# What an untrained model is: one step that changes next to nothing.
UNTRAINED = {
    "max_steps": "1",
    "max_minutes": "null",
    "learning_rate": "1e-12",
    "muon_learning_rate": "1e-12",
}
_TABLE_KEYS = (
    "title",
    "source",
    "note",
    "pretrain",
    "finetune",
    "evaluate",
    "features",
    "columns",
    "rows",
    "claims",
    "seeds",
)


@dataclass(frozen=True)
class Column:
    """A figure of each row: of its pre-training, of its checkpoint with the settings of `evaluate`,
    of a tagger over its frozen features, or where there is a task, of fine-tuning.
    """

    name: str
    metric: str = ""  # as all_results.json has it, without eval_
    task: str | None = None
    config: str | None = None  # of recipes/configs/finetune
    finetune: Mapping[str, str] | None = None
    evaluate: Mapping[str, str] | None = None
    features: Mapping[str, str] | None = None  # settings of recipes/feature_based_ner.py
    unit: str = "percent"
    mean_of: Sequence[Column] = ()  # which alone make this one

    @property
    def recipe(self) -> str:
        """Return the script that measures it."""
        if self.task is not None:
            return "finetune"
        if self.features is not None:
            return "feature_based_ner"
        return "pretrain" if self.evaluate is None else "evaluate_checkpoint"

    @property
    def less_is_better(self) -> bool:
        """Return True for losses and perplexities."""
        return self.metric.endswith(("loss", "perplexity"))


@dataclass(frozen=True)
class Row:
    """A pre-trained model, or one that is at hand; `published` has the paper's figures."""

    name: str
    pretrain: Mapping[str, str]
    finetune: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    model: str | None = None
    untrained: bool = False
    checkpoint: str | None = (
        None  # number, from 1, of the one of its run that is meant; the last where there is none
    )
    teacher: Row | None = None  # whose model teaches, of the same seed
    ensemble: Sequence[
        int
    ] = ()  # seeds whose fine-tuned models answer together; the same for each seed


class Claim(NamedTuple):
    """A row is better than another one in a column, or than itself in another column; or no further
    from it than `within`.
    """

    better: str
    worse: str
    column: str
    expected: str
    worse_column: str | None = None
    within: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of a paper, for one profile."""

    name: str
    profile: str
    title: str
    source: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    claims: Sequence[Claim]
    claim_seeds: Sequence[int]  # by which claims are judged; fixed before the first is run
    seeds: Sequence[int]  # that are run


class Cell(NamedTuple):
    """The run that a row, a column and a seed have their figure of, and that figure; NaN where
    training diverged.
    """

    run: Mapping[str, Any]
    value: float
    replicates: Sequence[float] = ()  # of the jackknife over its rows; none where the run left none
    rows: Sequence[str] = ()  # hashes of the rows that it was measured on


class PlannedRun(NamedTuple):
    """A run that is not finished: the one of a row's figure in a column or, without a column, the
    pre-training of the row.
    """

    key: str
    row: Row
    column: Column | None

    @property
    def recipe(self) -> str:
        """Return the script that runs it."""
        return "pretrain" if self.column is None else self.column.recipe

    @property
    def name(self) -> str:
        """Return what an estimate calls it."""
        return f"{self.row.name}: {'pre-training' if self.column is None else self.column.name}"


def _check_keys(
    where: str, tree: Any, allowed: Sequence[str], required: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a mapping of a table, whose keys are allowed and complete."""
    if not isinstance(tree, dict):
        raise InputError(f"{where}: a mapping is expected, with {', '.join(allowed)}")
    for key in tree:
        if key not in allowed:
            raise InputError(f"{where}: unknown key {key!r}{nearest_name(key, allowed)}")
    missing = [key for key in required if key not in tree]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing")
    return tree


def _read_claim_seeds(path: Path, number: Any) -> list[int]:
    """Return the seeds 1, 2, ... up to the number that a table or its profile names."""
    if number not in map(str, range(1, 101)):
        raise InputError(
            f"{path}: seeds is {number!r}; give the number of pre-training seeds by which claims "
            "are judged, 1 to 100, "
            "here or in the profile, like `seeds: 3`"
        )
    return list(range(1, int(number) + 1))


def _read_number(where: str, text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {text!r} is not a number") from None


def read_table(path: Path, profile: str) -> Table:
    """Read a table, with the settings of a profile (profiles.yaml beside it) under its own."""
    profiles, _ = read_tree(path.with_name("profiles.yaml"))
    if profile not in profiles:
        raise InputError(f"profile is '{profile}'; allowed: {', '.join(profiles)}")
    defaults = profiles[profile]
    content, _ = read_tree(path)
    tree = _check_keys(str(path), content, _TABLE_KEYS, ("title", "source", "columns", "rows"))
    for name in ("columns", "rows"):
        if not isinstance(tree[name], dict):
            raise InputError(f"{path}: {name}: a mapping is expected, of names and their settings")
    common = {}
    for name in ("pretrain", "finetune", "evaluate", "features"):
        common[name] = {**(defaults.get(name) or {}), **(tree.get(name) or {})}
    seeds = _read_claim_seeds(path, tree.get("seeds") or defaults.get("seeds"))
    rows = _read_rows(
        path, profile, tree["rows"], common["pretrain"], defaults.get("student") or {}, seeds
    )
    rows_of_other_profiles = set(tree["rows"]) - {row.name for row in rows}
    table = Table(
        name=path.stem,
        profile=profile,
        title=tree["title"],
        source=tree["source"],
        note=tree.get("note") or "",
        columns=_read_columns(path, tree["columns"], common),
        rows=rows,
        claims=_read_claims(path, tree.get("claims") or (), rows_of_other_profiles),
        claim_seeds=seeds,
        seeds=seeds,
    )
    _check_claims(path, table)
    return table


def _read_columns(
    path: Path, tree: Mapping[str, Any], common: Mapping[str, dict[str, str]]
) -> list[Column]:
    _, *keys = (attribute.name for attribute in fields(Column))
    columns: dict[str, Column] = {}
    for name, settings in tree.items():
        where = f"{path}, column {name}"
        attributes = _check_keys(where, settings, keys)
        averaged = set(attributes.get("mean_of", ()))
        unknown = averaged - set(columns)
        if unknown:
            raise InputError(f"{where}: no column {', '.join(sorted(unknown))} before it")
        attributes["mean_of"] = [column for column in columns.values() if column.name in averaged]
        for key, defaults in common.items():
            if key in attributes or key == "finetune":
                attributes[key] = defaults | (attributes.get(key) or {})
        columns[name] = Column(name, **attributes)
    return list(columns.values())


def _read_rows(
    path: Path,
    profile: str,
    tree: Mapping[str, Any],
    pretrain: Mapping[str, str],
    student: Mapping[str, str],
    seeds: Sequence[int],
) -> list[Row]:
    """Read the rows of a profile: a row may name the only `profiles` that have it, or
    `not_profiles`.
    """
    _, *keys = (attribute.name for attribute in fields(Row))
    rows = []
    for name, settings in tree.items():
        where = f"{path}, row {name}"
        attributes = _check_keys(where, settings or {}, [*keys, "profiles", "not_profiles"])
        excluded = attributes.pop("not_profiles", ())
        profiles = attributes.pop("profiles", [profile])
        if profile in excluded or profile not in profiles:
            continue
        attributes["untrained"] = attributes.get("untrained") == "true"
        attributes["ensemble"] = seeds if attributes.get("ensemble") == "true" else ()
        pretrain_of_row = dict(pretrain)
        if attributes.get("teacher") == "true":
            attributes["teacher"] = Row(f"{name}: teacher", pretrain)
            pretrain_of_row.update(student)
        pretrain_of_row.update(attributes.get("pretrain") or {})
        if attributes["untrained"]:
            pretrain_of_row.update(UNTRAINED)
        attributes["pretrain"] = pretrain_of_row
        published = attributes.get("published") or {}
        attributes["published"] = {
            column: _read_number(where, figure) for column, figure in published.items()
        }
        rows.append(Row(name, **attributes))
    if not rows:
        raise InputError(
            f"{path}: no row has the profile '{profile}'; see their `profiles` and `not_profiles`"
        )
    return rows


def _read_claims(path: Path, tree: Sequence[Any], rows_of_other_profiles: set[str]) -> list[Claim]:
    """Read the claims but those of rows that a profile does not have."""
    where = f"{path}, claims"
    claims = []
    for content in tree:
        attributes = _check_keys(where, content, Claim._fields, Claim._fields[:4])
        if rows_of_other_profiles & {attributes["better"], attributes["worse"]}:
            continue
        if "within" in attributes:
            attributes["within"] = _read_number(where, attributes["within"])
        claims.append(Claim(**attributes))
    return claims


def _check_claims(path: Path, table: Table) -> None:
    """Check that the rows and columns of the claims are in the table."""
    names = {
        "row": [row.name for row in table.rows],
        "column": [column.name for column in table.columns],
    }
    for claim in table.claims:
        for key in ("better", "worse", "column", "worse_column"):
            name = getattr(claim, key)
            kind = "column" if "column" in key else "row"
            if name is not None and name not in names[kind]:
                raise InputError(
                    f"{path}: a claim names the {kind} {name!r}; there are: "
                    f"{', '.join(names[kind])}"
                )
        if claim.expected not in EXPECTED:
            raise InputError(
                f"{path}: a claim is expected {claim.expected!r}; allowed: {', '.join(EXPECTED)}"
            )


class Runs:
    """The runs of tables in one folder. A run is known by a hash of its settings, a fine-tuning one
    also by that of its checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        recipes: Path,
        flags: Mapping[str, Sequence[str]],
        store: str,
        join: Join | None = None,
    ) -> None:
        """`flags` are those of each recipe's runs that say where the data is; `store` is the
        fingerprint of the text; `join` makes an ensemble.
        """
        self.folder, self.recipes, self.flags, self.store = folder, recipes, flags, store
        self.join = join
        lock_run(folder, patience=0)
        file = folder / RUNS_FILE
        self.known: dict[str, dict[str, Any]] = read_json_object(file) if file.is_file() else {}
        if not all(
            isinstance(run, dict) and isinstance(run.get("figures"), dict)
            for run in self.known.values()
        ):
            raise InputError(
                f"{file}: not the runs of tables; fetch the file again, or give another "
                "--output_dir"
            )

    def checkpoint_key(self, row: Row, seed: int) -> str | None:
        """Return the hash of the run that trains a row's model; None where the model is at hand."""
        if row.model:
            return None
        settings = {"recipe": "pretrain", "store": self.store, **row.pretrain, "seed": str(seed)}
        if row.teacher is not None:
            settings["teacher"] = str(self.checkpoint_key(row.teacher, seed))
        return _hash(settings)

    def figure_key(self, row: Row, column: Column, seed: int) -> str | None:
        """Return the hash of the run that has a row's figure in a column; None where there is no
        such run.
        """
        if column.mean_of:
            return None
        if row.ensemble:
            member = replace(row, ensemble=())
            keys = [
                str(self.figure_key(member, column, member_seed)) for member_seed in row.ensemble
            ]
            return _hash({"recipe": "ensemble", "members": " ".join(keys)})
        checkpoint_key = self.checkpoint_key(row, seed)
        if column.recipe == "pretrain":
            return None if row.checkpoint else checkpoint_key
        model = row.model or str(checkpoint_key)
        if row.checkpoint:
            model += f"/checkpoint-{row.checkpoint}"
        return _hash({"recipe": column.recipe, "model": model, **self._settings(row, column, seed)})

    def _settings(self, row: Row, column: Column, seed: int) -> dict[str, str]:
        if column.features is not None:
            return {**column.features, "seeds": str(seed)}
        if column.task is None:  # the held-out masks do not depend on a seed
            return {"store": self.store, **(column.evaluate or {})}
        config = {"config": f"finetune/{column.config or 'glue'}", "task": column.task}
        return {**config, **(column.finetune or {}), **row.finetune, "seed": str(seed)}

    def cell(self, row: Row, column: Column, seed: int) -> Cell | None:
        """Return what is known of a cell; None before its run."""
        if column.mean_of:
            return _mean_cell([self.cell(row, averaged, seed) for averaged in column.mean_of])
        key = self.figure_key(row, column, seed)
        run = None if key is None else self.known.get(key)
        if run is None:
            return None
        value = figure_of(run["figures"], f"eval_{column.metric}")
        if value is None:
            metrics = [
                name.removeprefix("eval_") for name in run["figures"] if name.startswith("eval_")
            ]
            raise InputError(
                f"column {column.name}: no metric {column.metric}; its runs have "
                f"{', '.join(metrics)}"
            )
        replicates = (run["figures"].get("jackknife") or {}).get(column.metric) or []
        if None in replicates:  # undefined without one of the groups
            replicates = []
        return Cell({"key": key, **run}, value, replicates, list(run.get("sha256", {}).values()))

    def missing(self, table: Table) -> Iterator[tuple[Row, Column, int]]:
        """Yield the cells whose run is not finished, seed by seed, so that whole tables come
        early.
        """
        for seed in table.seeds:
            for row in table.rows:
                for column in table.columns:
                    key = self.figure_key(row, column, seed)
                    if key is not None and key not in self.known:
                        yield row, column, seed

    def measure(self, row: Row, column: Column, seed: int) -> None:
        """Do what a cell needs: pre-train, unless that is done and its checkpoint at hand, and
        measure.
        """
        checkpoint_key = self.checkpoint_key(row, seed)
        key = self.figure_key(row, column, seed)
        assert key is not None
        if row.ensemble:
            self._join(row, column, key)
            return
        folder = self.folder
        if not row.model:
            folder = self._pretrain(row, seed, needs_weights=checkpoint_key != key)
        if key == checkpoint_key:
            return
        if row.checkpoint:
            saved = sorted(
                folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])
            )
            folder = saved[int(row.checkpoint) - 1]
        model = {"model_name_or_path": row.model or str(folder)}
        settings = {
            name: value
            for name, value in self._settings(row, column, seed).items()
            if name != "store"
        }
        if column.recipe == "evaluate_checkpoint":
            settings["results_file"] = str(self.folder / key / RESULTS_FILE)
        self._run(column.recipe, key, {**model, **settings})
        for path in (self.folder / key).glob("*.safetensors"):  # figures and predictions stay
            path.unlink()

    def _pretrain(self, row: Row, seed: int, *, needs_weights: bool) -> Path:
        """Return the folder of a row's model, trained where that, or its weights, are not there."""
        key = str(self.checkpoint_key(row, seed))
        folder = self.folder / key
        has_weights = (folder / "config.json").is_file()
        if key not in self.known or (needs_weights and not has_weights):
            settings = {**row.pretrain, "seed": str(seed)}
            if row.teacher is not None:
                settings["teacher"] = str(self._pretrain(row.teacher, seed, needs_weights=True))
            self._run("pretrain", key, settings)
        return folder

    def _join(self, row: Row, column: Column, key: str) -> None:
        """Measure the ensemble of a row's models, after all of them."""
        assert self.join is not None
        member = replace(row, ensemble=())
        folders = []
        for seed in row.ensemble:
            folder = self.folder / str(self.figure_key(member, column, seed))
            if not (folder / TASK_FILE).is_file():  # predictions are needed, not figures alone
                self.measure(member, column, seed)
            folders.append(folder)
        start = time.monotonic()
        settings = {"members": " ".join(folder.name for folder in folders)}
        self._keep("ensemble", key, settings, self.join(folders, self.folder / key), start)

    def _command(
        self, recipe: str, settings: Mapping[str, str]
    ) -> tuple[list[str], tuple[str, ...], list[str]]:
        """Return the script, the flags that say where its data is, and those of the settings."""
        flags = {name: "null" if value is None else value for name, value in settings.items()}
        data = tuple(self.flags[recipe])
        if "config" in flags:
            flags["config"] = str(self.recipes / "configs" / f"{flags['config']}.yaml")
        if flags.get("task", "").startswith(PAIRS):
            label = flags.pop("task").removeprefix(PAIRS)
            flags["task_file"] = str(self._pair_task(label))
            data = ()
        return [sys.executable, str(self.recipes / f"{recipe}.py")], data, as_flags(flags)

    def _run(self, recipe: str, key: str, settings: Mapping[str, str]) -> None:
        script, data, flags = self._command(recipe, settings)
        needs = (TASK_FILE,) if recipe == "finetune" else ()
        launcher = RunLauncher(tuple(script), data, needs, "save_steps" in settings)
        start = time.monotonic()
        self._keep(recipe, key, settings, launcher.run(self.folder / key, flags), start)

    def _keep(
        self,
        recipe: str,
        key: str,
        settings: Mapping[str, str],
        results: Mapping[str, Any],
        start: float,
    ) -> None:
        splits = results.get("splits") or {}
        # None is a figure that is not defined, as where training diverged.
        figures = {
            name: value for name, value in results.items() if isinstance(value, int | float | None)
        }
        self.known[key] = {
            "recipe": recipe,
            "settings": dict(settings),
            "seconds": results.get("train_seconds") or time.monotonic() - start,
            "figures": strict(
                figures | {name: results.get(name) for name in ("intervals", "jackknife")}
            ),
            # Of the rows that it was measured on.
            "sha256": {
                name: split["sha256"]
                for name, split in splits.items()
                if name.startswith("validation")
            },
            "machine": results.get("machine"),
            "date": time.strftime("%Y-%m-%d"),
        }
        write_json(self.folder / RUNS_FILE, self.known)

    def _pair_task(self, label: str) -> Path:
        """The task file of the store's pairs under a label, made when it is first asked for."""
        folder = self.folder / "tasks" / label
        if not (folder / TASK_FILE).is_file():
            command = [
                sys.executable,
                str(self.recipes / "make_pair_task.py"),
                *self.flags["pretrain"],
            ]
            if subprocess.run(
                [*command, "--pair_label", label, "--output_dir", str(folder)]
            ).returncode:
                raise InputError(f"no task of the pairs of {label}; the reason is above")
        return folder / TASK_FILE

    def _planned_runs(self, tables: Sequence[Table]) -> Iterator[PlannedRun]:
        """Yield the runs of the missing cells, each after the pre-training of its row; cells may
        share them.
        """
        for table in tables:
            for row, column, seed in self.missing(table):
                checkpoint_key = self.checkpoint_key(row, seed)
                if checkpoint_key is not None and checkpoint_key not in self.known:
                    yield PlannedRun(checkpoint_key, row, None)
                yield PlannedRun(str(self.figure_key(row, column, seed)), row, column)

    def estimate(self, tables: Sequence[Table]) -> Iterator[tuple[str, int, float, int]]:
        """Estimate what is left by a few real steps of each kind of run; evaluations do not count.

        Yields:
            The name of the kind, how many such runs there are, the hours of all of them, MB a
            process.
        """
        seed = tables[0].seeds[0]
        for runs in self._group_by_cost(tables, seed):
            estimate = self._estimate_run(runs[0], seed)
            yield (
                runs[0].name,
                len(runs),
                len(runs) * estimate["hours"],
                round(estimate["memory_mb"]),
            )

    def _group_by_cost(self, tables: Sequence[Table], seed: int) -> list[list[PlannedRun]]:
        """Group the training runs that take the same time and memory."""
        runs: dict[str, PlannedRun] = {}
        for run in self._planned_runs(tables):
            is_pretraining = run.column is None and not run.row.untrained
            is_training = is_pretraining or run.recipe == "finetune"
            if is_training and not run.row.ensemble:
                runs.setdefault(run.key, run)
        groups: dict[str, list[PlannedRun]] = {}
        for run in runs.values():
            settings = dict(run.row.pretrain)
            if run.column is not None:
                # Fine-tuning takes what the model's size takes, whatever it was trained on.
                settings = self._settings(run.row, run.column, seed)
                settings.update(size=str(run.row.pretrain.get("size")), model=str(run.row.model))
            groups.setdefault(_hash(settings), []).append(run)
        return list(groups.values())

    def _estimate_run(self, run: PlannedRun, seed: int) -> dict[str, Any]:
        """Return the numbers of a run's `Estimate`; models that it starts from are made without
        training.
        """
        row = _untrained(run.row)
        if run.column is not None:
            model = row.model or self._pretrain(row, seed, needs_weights=True)
            settings = self._settings(row, run.column, seed)
            settings["model_name_or_path"] = str(model)
        else:
            settings = {**run.row.pretrain, "seed": str(seed)}
            if row.teacher is not None:
                settings["teacher"] = str(self._pretrain(row.teacher, seed, needs_weights=True))
        script, data, flags = self._command(run.recipe, settings)
        flags += ["--estimate", "true", "--output_dir", str(self.folder / "estimate")]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "estimate.json"
            environment = {**os.environ, ESTIMATE_FILE: str(file)}
            code = subprocess.run(
                [*script, *data, *flags], stdout=subprocess.DEVNULL, env=environment
            ).returncode
            if code:
                raise InputError(f"{run.name}: no estimate; the reason is above")
            return read_json_object(file)

    def hours_left(self, tables: Sequence[Table]) -> float | None:
        """Return the hours by the mean of the finished runs of each recipe; None while one has no
        finished run.
        """
        recipes = {run.key: run.recipe for run in self._planned_runs(tables)}
        total = 0.0
        for recipe, count in Counter(recipes.values()).items():
            seconds = [run["seconds"] for run in self.known.values() if run["recipe"] == recipe]
            if not seconds:
                return None
            total += count * statistics.fmean(seconds)
        return total / 3600


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
    return Cell({}, statistics.fmean(cell.value for cell in cells), replicates, rows)


def _untrained(row: Row) -> Row:
    """Return a row whose model, and its teacher, are not trained."""
    teacher = None if row.teacher is None else _untrained(row.teacher)
    return replace(row, pretrain={**row.pretrain, **UNTRAINED}, teacher=teacher)


def _hash(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
