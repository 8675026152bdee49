"""The tables of a paper as runs: which each row and column needs; runs with the same settings are one, and finished ones are kept."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from bert_recipes.config import nearest_name
from bert_recipes.errors import InputError
from bert_recipes.files import lock_run, read_json_object, strict, write_json
from bert_recipes.sweeps.sweep import RESULTS_FILE, TASK_FILE, RunLauncher, as_flags, figure_of
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
UNTRAINED = {"max_steps": "1", "max_minutes": "null", "learning_rate": "1e-12", "muon_learning_rate": "1e-12"}
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
    """A figure of each row: of its pre-training, of its checkpoint with the settings of `evaluate`, of a tagger over its frozen features, or where there is a task, of fine-tuning."""

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
        """What is run for it."""
        if self.task is not None:
            return "finetune"
        if self.features is not None:
            return "feature_based_ner"
        return "pretrain" if self.evaluate is None else "evaluate_checkpoint"

    @property
    def less_is_better(self) -> bool:
        """Losses and perplexities."""
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
    checkpoint: str | None = None  # number, from 1, of the one of its run that is meant; the last where there is none
    teacher: Row | None = None  # whose model teaches, of the same seed
    ensemble: Sequence[int] = ()  # seeds whose fine-tuned models answer together; the same for each seed


class Claim(NamedTuple):
    """A row is better than another one in a column, or than itself in another column; or no further from it than `within`."""

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
    """The run that a row, a column and a seed have their figure of, and that figure; NaN where training diverged."""

    run: Mapping[str, Any]
    value: float
    replicates: Sequence[float] = ()  # of the jackknife over its rows; none where the run left none
    rows: Sequence[str] = ()  # hashes of the rows that it was measured on


def _checked(where: str, given: Any, keys: Sequence[str], needed: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"{where}: a mapping is expected, with {', '.join(keys)}")
    for key in given:
        if key not in keys:
            raise InputError(f"{where}: unknown key {key!r}{nearest_name(key, keys)}")
    if missing := [key for key in needed if key not in given]:
        raise InputError(f"{where}: {', '.join(missing)} missing")
    return given


def _read_claim_seeds(path: Path, number: Any) -> list[int]:
    """Return the seeds 1, 2, ... up to the number that a table or its profile names."""
    if number not in map(str, range(1, 101)):
        raise InputError(
            f"{path}: seeds is {number!r}; give the number of pre-training seeds by which claims are judged, 1 to 100, "
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
    base = profiles[profile]
    tree = _checked(str(path), read_tree(path)[0], _TABLE_KEYS, ("title", "source", "columns", "rows"))
    for name in ("columns", "rows"):
        if not isinstance(tree[name], dict):
            raise InputError(f"{path}: {name}: a mapping is expected, of names and their settings")
    common = {}
    for name in ("pretrain", "finetune", "evaluate", "features"):
        common[name] = {**(base.get(name) or {}), **(tree.get(name) or {})}
    seeds = _read_claim_seeds(path, tree.get("seeds") or base.get("seeds"))
    rows = _read_rows(path, profile, tree["rows"], common["pretrain"], base.get("student") or {}, seeds)
    absent = {*tree["rows"]} - {row.name for row in rows}
    table = Table(
        name=path.stem,
        profile=profile,
        title=tree["title"],
        source=tree["source"],
        note=tree.get("note") or "",
        columns=_read_columns(path, tree["columns"], common),
        rows=rows,
        claims=_read_claims(path, tree.get("claims") or (), absent),
        claim_seeds=seeds,
        seeds=seeds,
    )
    _check_claims(path, table)
    return table


def _read_columns(path: Path, tree: Mapping[str, Any], common: Mapping[str, dict[str, str]]) -> list[Column]:
    _, *keys = (each.name for each in fields(Column))
    columns: list[Column] = []
    for name, given in tree.items():
        own = _checked(f"{path}, column {name}", given, keys)
        mean_of = own.get("mean_of", ())
        if unknown := {*mean_of} - {column.name for column in columns}:
            raise InputError(f"{path}, column {name}: no column {', '.join(sorted(unknown))} before it")
        own["mean_of"] = [column for column in columns if column.name in mean_of]
        for key, settings in common.items():
            if key in own or key == "finetune":
                own[key] = settings | (own.get(key) or {})
        columns.append(Column(name, **own))
    return columns


def _read_rows(
    path: Path,
    profile: str,
    tree: Mapping[str, Any],
    pretrain: Mapping[str, str],
    student: Mapping[str, str],
    seeds: Sequence[int],
) -> list[Row]:
    """Read the rows of a profile: a row may name the only `profiles` that have it, or `not_profiles`."""
    _, *keys = (each.name for each in fields(Row))
    rows = []
    for name, given in tree.items():
        where = f"{path}, row {name}"
        own = _checked(where, given or {}, [*keys, "profiles", "not_profiles"])
        if profile in own.pop("not_profiles", ()) or profile not in own.pop("profiles", [profile]):
            continue
        own["untrained"] = own.get("untrained") == "true"
        own["ensemble"] = seeds if own.get("ensemble") == "true" else ()
        settings = dict(pretrain)
        if own.get("teacher") == "true":
            own["teacher"] = Row(f"{name}: teacher", pretrain)
            settings.update(student)
        settings.update(own.get("pretrain") or {})
        if own["untrained"]:
            settings.update(UNTRAINED)
        own["pretrain"] = settings
        published = own.get("published") or {}
        own["published"] = {column: _read_number(where, figure) for column, figure in published.items()}
        rows.append(Row(name, **own))
    if not rows:
        raise InputError(f"{path}: no row has the profile '{profile}'; see their `profiles` and `not_profiles`")
    return rows


def _read_claims(path: Path, tree: Sequence[Any], absent: set[str]) -> list[Claim]:
    """Read the claims but those of rows that a profile does not have."""
    claims = []
    for given in tree:
        own = _checked(f"{path}, claims", given, Claim._fields, Claim._fields[:4])
        if absent & {own["better"], own["worse"]}:
            continue
        if "within" in own:
            own["within"] = _read_number(f"{path}, claims", own["within"])
        claims.append(Claim(**own))
    return claims


def _check_claims(path: Path, table: Table) -> None:
    """Check that the rows and columns of the claims are in the table."""
    names = {"row": [row.name for row in table.rows], "column": [column.name for column in table.columns]}
    for claim in table.claims:
        for key in ("better", "worse", "column", "worse_column"):
            name = getattr(claim, key)
            kind = "column" if "column" in key else "row"
            if name is not None and name not in names[kind]:
                raise InputError(f"{path}: a claim names the {kind} {name!r}; there are: {', '.join(names[kind])}")
        if claim.expected not in EXPECTED:
            raise InputError(f"{path}: a claim is expected {claim.expected!r}; allowed: {', '.join(EXPECTED)}")


class Runs:
    """The runs of tables in one folder. A run is known by a hash of its settings, a fine-tuning one also by that of its checkpoint."""

    def __init__(
        self,
        folder: Path,
        recipes: Path,
        flags: Mapping[str, Sequence[str]],
        store: str,
        join: Join | None = None,
    ) -> None:
        """`flags` are those of each recipe's runs that say where the data is; `store` is the fingerprint of the text; `join` makes an ensemble."""
        self.folder, self.recipes, self.flags, self.store = folder, recipes, flags, store
        self.join = join
        lock_run(folder, patience=0)
        file = folder / RUNS_FILE
        self.known: dict[str, dict[str, Any]] = read_json_object(file) if file.is_file() else {}
        if not all(isinstance(run, dict) and isinstance(run.get("figures"), dict) for run in self.known.values()):
            raise InputError(f"{file}: not the runs of tables; fetch the file again, or give another --output_dir")

    def key(self, row: Row, column: Column | None, seed: int) -> str | None:
        """The hash of the run that has a row's figure in a column (None: that makes its checkpoint); None where there is no such run."""
        if column is not None and column.mean_of:
            return None
        if row.ensemble and column is not None:
            members = [str(self.key(replace(row, ensemble=()), column, each)) for each in row.ensemble]
            return _hash({"recipe": "ensemble", "members": " ".join(members)})
        pretraining = {"recipe": "pretrain", "store": self.store, **row.pretrain, "seed": str(seed)}
        if row.teacher is not None:
            pretraining["teacher"] = str(self.key(row.teacher, None, seed))
        checkpoint = row.model or _hash(pretraining)
        if column is None:
            return None if row.model else checkpoint
        if column.recipe == "pretrain":
            return None if row.model or row.checkpoint else checkpoint
        checkpoint += f"/checkpoint-{row.checkpoint}" if row.checkpoint else ""
        return _hash({"recipe": column.recipe, "model": checkpoint, **self._settings(row, column, seed)})

    def _settings(self, row: Row, column: Column, seed: int) -> dict[str, str]:
        if column.features is not None:
            return {**column.features, "seeds": str(seed)}
        if column.task is None:  # the held-out masks do not depend on a seed
            return {"store": self.store, **(column.evaluate or {})}
        config = {"config": f"finetune/{column.config or 'glue'}", "task": column.task}
        return {**config, **(column.finetune or {}), **row.finetune, "seed": str(seed)}

    def cell(self, row: Row, column: Column, seed: int) -> Cell | None:
        """What is known of a cell; None before its run."""
        if column.mean_of:
            return _mean_cell([self.cell(row, part, seed) for part in column.mean_of])
        key = self.key(row, column, seed)
        run = None if key is None else self.known.get(key)
        if run is None:
            return None
        value = figure_of(run["figures"], f"eval_{column.metric}")
        if value is None:
            there = ", ".join(name.removeprefix("eval_") for name in run["figures"] if name.startswith("eval_"))
            raise InputError(f"column {column.name}: no metric {column.metric}; its runs have {there}")
        replicates = (run["figures"].get("jackknife") or {}).get(column.metric) or []
        if None in replicates:  # undefined without one of the groups
            replicates = []
        return Cell({"key": key, **run}, value, replicates, list(run.get("sha256", {}).values()))

    def missing(self, table: Table) -> Iterator[tuple[Row, Column, int]]:
        """The cells whose run is not finished, seed by seed, so that whole tables come early."""
        for seed in table.seeds:
            for row in table.rows:
                for column in table.columns:
                    if (key := self.key(row, column, seed)) is not None and key not in self.known:
                        yield row, column, seed

    def measure(self, row: Row, column: Column, seed: int) -> None:
        """Do what a cell needs: pre-train, unless that is done and its checkpoint at hand, and measure."""
        made, key = self.key(row, None, seed), self.key(row, column, seed)
        assert key is not None
        if row.ensemble:
            self._join(row, column, key)
            return
        folder = self.folder if row.model else self._pretrain(row, seed, needs_weights=made != key)
        if key == made:
            return
        if row.checkpoint:
            saved = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
            folder = saved[int(row.checkpoint) - 1]
        model = {"model_name_or_path": row.model or str(folder)}
        settings = {name: value for name, value in self._settings(row, column, seed).items() if name != "store"}
        if column.recipe == "evaluate_checkpoint":
            settings["results_file"] = str(self.folder / key / RESULTS_FILE)
        self._run(column.recipe, key, {**model, **settings})
        for path in (self.folder / key).glob("*.safetensors"):  # figures and predictions stay
            path.unlink()
        shutil.rmtree(self.folder / key / "features", ignore_errors=True)

    def _pretrain(self, row: Row, seed: int, *, needs_weights: bool) -> Path:
        """The folder of a row's model, trained where that, or its weights, are not there."""
        made = str(self.key(row, None, seed))
        folder = self.folder / made
        if made not in self.known or (needs_weights and not (folder / "config.json").is_file()):
            settings = {**row.pretrain, "seed": str(seed)}
            if row.teacher is not None:
                settings["teacher"] = str(self._pretrain(row.teacher, seed, needs_weights=True))
            self._run("pretrain", made, settings)
        return folder

    def _join(self, row: Row, column: Column, key: str) -> None:
        """Measure the ensemble of a row's models, after all of them."""
        assert self.join is not None
        member, folders = replace(row, ensemble=()), []
        for seed in row.ensemble:
            folders.append(self.folder / str(self.key(member, column, seed)))
            if not (folders[-1] / TASK_FILE).is_file():  # predictions are needed, not figures alone
                self.measure(member, column, seed)
        start, names = time.monotonic(), " ".join(folder.name for folder in folders)
        self._keep("ensemble", key, {"members": names}, self.join(folders, self.folder / key), start)

    def _command(self, recipe: str, settings: Mapping[str, str]) -> tuple[list[str], tuple[str, ...], list[str]]:
        """The script, the flags that say where its data is, and those of the settings."""
        if "config" in settings:
            settings = {**settings, "config": str(self.recipes / "configs" / f"{settings['config']}.yaml")}
        data = tuple(self.flags[recipe])
        if (task := str(settings.get("task"))).startswith(PAIRS):
            settings = {name: value for name, value in settings.items() if name != "task"}
            settings, data = {**settings, "task_file": str(self._pair_task(task.removeprefix(PAIRS)))}, ()
        settings = {name: "null" if value is None else value for name, value in settings.items()}
        return [sys.executable, str(self.recipes / f"{recipe}.py")], data, as_flags(settings)

    def _run(self, recipe: str, key: str, settings: Mapping[str, str]) -> None:
        script, data, flags = self._command(recipe, settings)
        needs = (TASK_FILE,) if recipe == "finetune" else ()
        launcher = RunLauncher(tuple(script), data, needs, "save_steps" in settings)
        start = time.monotonic()
        self._keep(recipe, key, settings, launcher.run(self.folder / key, flags), start)

    def _keep(
        self, recipe: str, key: str, settings: Mapping[str, str], results: Mapping[str, Any], start: float
    ) -> None:
        splits = results.get("splits") or {}
        # None is a figure that is not defined, as where training diverged.
        figures = {name: value for name, value in results.items() if isinstance(value, int | float | None)}
        self.known[key] = {
            "recipe": recipe,
            "settings": dict(settings),
            "seconds": results.get("train_seconds") or time.monotonic() - start,
            "figures": strict(figures | {name: results.get(name) for name in ("intervals", "jackknife")}),
            # Of the rows that it was measured on.
            "sha256": {name: split["sha256"] for name, split in splits.items() if name.startswith("validation")},
            "machine": results.get("machine"),
            "date": time.strftime("%Y-%m-%d"),
        }
        write_json(self.folder / RUNS_FILE, self.known)

    def _pair_task(self, label: str) -> Path:
        """The task file of the store's pairs under a label, made when it is first asked for."""
        folder = self.folder / "tasks" / label
        if not (folder / TASK_FILE).is_file():
            command = [sys.executable, str(self.recipes / "make_pair_task.py"), *self.flags["pretrain"]]
            if subprocess.run([*command, "--pair_label", label, "--output_dir", str(folder)]).returncode:
                raise InputError(f"no task of the pairs of {label}; the reason is above")
        return folder / TASK_FILE

    def estimate(self, tables: Sequence[Table]) -> Iterator[tuple[str, int, float, int]]:
        """What is left, by a few real steps of each kind of run: its name, how many there are, hours of all, MB a process. Evaluations do not count."""
        first_seed = tables[0].seeds[0]
        alike: dict[str, list[Any]] = {}
        seen: set[str | None] = {None, *self.known}
        for row, column, seed in (cell for table in tables for cell in self.missing(table)):
            for part in () if row.ensemble else (None, column):
                key = self.key(row, part, seed)
                is_wanted = not row.untrained if part is None else part.recipe == "finetune"
                if key in seen or not is_wanted:
                    continue
                seen.add(key)
                # Fine-tuning takes what the model's size takes, whatever it was trained on.
                model = (
                    row.pretrain if part is None else {"size": str(row.pretrain.get("size")), "model": str(row.model)}
                )
                own = {} if part is None else self._settings(row, part, first_seed)
                alike.setdefault(_hash({**own, **model}), [row, part, 0])[2] += 1
        for row, column, count in alike.values():
            untrained = _untrained(row)
            recipe, settings = "pretrain", {**row.pretrain, "seed": str(first_seed)}
            if column is not None:
                made = row.model or self._pretrain(untrained, first_seed, needs_weights=True)
                recipe, settings = column.recipe, self._settings(row, column, first_seed)
                settings |= {"model_name_or_path": str(made)}
            elif untrained.teacher is not None:
                settings["teacher"] = str(self._pretrain(untrained.teacher, first_seed, needs_weights=True))
            script, data, flags = self._command(recipe, settings)
            output = ["--estimate", "true", "--output_dir", str(self.folder / "estimate")]
            name = f"{row.name}: pre-training" if column is None else f"{row.name}: {column.name}"
            run = subprocess.run([*script, *data, *flags, *output], stdout=subprocess.PIPE, text=True)
            if run.returncode:
                raise InputError(f"{name}: no estimate; the reason is above")
            pattern = r"examples, (\S+) s,.*?^([\d,.]+) (steps|minutes).*?memory\s+([\d,]+) MB"
            found = re.search(pattern, run.stdout, re.MULTILINE | re.DOTALL)
            assert found, run.stdout
            seconds, number, memory = (float(found[group].replace(",", "")) for group in (1, 2, 4))
            yield name, count, count * number * (seconds if found[3] == "steps" else 60) / 3600, int(memory)

    def hours_left(self, tables: Sequence[Table]) -> float | None:
        """By the mean seconds of the finished runs of each recipe; None while one has no finished run."""
        left: dict[str, str] = {}
        for row, column, seed in (cell for table in tables for cell in self.missing(table)):
            left |= {str(self.key(row, column, seed)): column.recipe}
            if row.model is None:
                left |= {str(self.key(row, None, seed)): "pretrain"}
        total = 0.0
        for recipe in {*left.values()}:
            done = [run["seconds"] for run in self.known.values() if run["recipe"] == recipe]
            count = sum(left[key] == recipe and key not in self.known for key in left)
            if count and not done:
                return None
            total += count * sum(done) / max(1, len(done))
        return total / 3600


def _mean_cell(parts: Sequence[Cell | None]) -> Cell | None:
    """Return the mean of figures, which has no run of its own; None where one is missing.

    The rows of several tasks are left out group by group at once: they are independent, and so are their deviations.
    """
    cells = [part for part in parts if part is not None]
    if len(cells) < len(parts):
        return None
    replicates: list[float] = []
    if len({len(cell.replicates) for cell in cells}) == 1:
        replicates = [statistics.fmean(group) for group in zip(*(cell.replicates for cell in cells), strict=True)]
    rows = [digest for cell in cells for digest in cell.rows]
    return Cell({}, statistics.fmean(cell.value for cell in cells), replicates, rows)


def _untrained(row: Row) -> Row:
    """A row's model, and its teacher, before training."""
    return replace(row, pretrain={**row.pretrain, **UNTRAINED}, teacher=row.teacher and _untrained(row.teacher))


def _hash(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
