"""A table of a paper: its rows, columns and claims, as a YAML file and a profile give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bert_recipes.errors import InputError
from bert_recipes.yaml_files import read_tree


EXPECTED = ("must", "should", "report")
# What an untrained model is: one step that changes next to nothing.
UNTRAINED = {
    "max_steps": "1",
    "max_minutes": "null",
    "learning_rate": "1e-12",
    "muon_learning_rate": "1e-12",
}


# Unit -> what a figure is multiplied by, and its digits.
UNITS = {"percent": (100, 1), "points": (1, 1), "nats": (1, 3)}


@dataclass(frozen=True)
class Column:
    """A figure of each row.

    It is one of fine-tuning where there is a task, else of a tagger over frozen `features`, of the
    checkpoint with the settings of `evaluate`, or of pre-training.
    """

    name: str
    metric: str = ""  # as all_results.json has it, without eval_
    task: str | None = None
    config: str = "glue"  # of recipes/configs/finetune
    finetune: Mapping[str, str] = field(default_factory=dict)
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
    """A pre-trained model; `published` has the paper's figures."""

    name: str
    pretrain: Mapping[str, str]
    finetune: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    untrained: bool = False
    # Number, from 1, of the checkpoint of its run; the last where there is none.
    checkpoint: str | None = None
    teacher: Row | None = None  # whose model teaches, of the same seed
    # Seeds whose fine-tuned models answer together; the same for each seed.
    ensemble: Sequence[int] = ()


class Claim(NamedTuple):
    """A row is better than another one, or no further from it than `within`.

    With `worse_column` the worse figure is in that column.
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


@dataclass(frozen=True)
class TableFile:
    """The keys of a table's YAML file."""

    title: str
    source: str
    columns: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, Any] | None]
    note: str = ""
    seeds: str | None = None
    claims: Sequence[Mapping[str, str]] = ()
    # Settings of all rows and columns, over those of the profile.
    pretrain: Mapping[str, str] = field(default_factory=dict)
    finetune: Mapping[str, str] = field(default_factory=dict)
    evaluate: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.rows, dict) and isinstance(self.columns, dict)):
            raise TypeError("rows and columns are mappings, of names and their settings")


class Profile:
    """The settings that all runs of a table have in common, and the number of its seeds."""

    def __init__(self, path: Path, name: str, file: TableFile) -> None:
        """Read profiles.yaml beside a table; what the table says itself comes before it."""
        profiles, _ = read_tree(path.with_name("profiles.yaml"))
        if name not in profiles:
            raise InputError(f"profile is '{name}'; allowed: {', '.join(profiles)}")
        settings = profiles[name]
        self.name = name
        self.seeds = _read_seeds(path, file.seeds or settings.get("seeds"))
        self.student = settings.get("student", {})
        self.pretrain = {**settings.get("pretrain", {}), **file.pretrain}
        self.finetune = {**settings.get("finetune", {}), **file.finetune}
        self.evaluate = {**settings.get("evaluate", {}), **file.evaluate}
        self.features = {**settings.get("features", {}), **file.features}


def read_table(path: Path, profile_name: str) -> Table:
    """Read a table, with the settings of a profile under its own."""
    content, _ = read_tree(path)
    with _named(str(path)):
        file = TableFile(**content)
    profile = Profile(path, profile_name, file)
    rows = []
    for name, settings in file.rows.items():
        with _named(f"{path}, row {name}"):
            row = _read_row(name, dict(settings or {}), profile)
        if row is not None:
            rows.append(row)
    if not rows:
        raise InputError(f"{path}: no row has the profile '{profile.name}'; see their `profiles`")
    columns: list[Column] = []
    for name, settings in file.columns.items():
        with _named(f"{path}, column {name}"):
            columns.append(_read_column(name, dict(settings or {}), profile, columns))
    row_names = {row.name for row in rows}
    claims = _read_claims(path, file.claims, set(file.rows) - row_names)
    _check_claims(path, claims, row_names, {column.name for column in columns})
    return Table(
        name=path.stem,
        profile=profile.name,
        title=file.title,
        source=file.source,
        note=file.note,
        columns=columns,
        rows=rows,
        claims=claims,
        claim_seeds=profile.seeds,
        seeds=profile.seeds,
    )


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Name the place in a file of a key that is unknown or missing, or of a wrong number."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: {error}") from error


def _read_seeds(path: Path, number: Any) -> list[int]:
    """Return the seeds 1, 2, ... up to the number that a table or its profile names."""
    if number not in map(str, range(1, 101)):
        raise InputError(
            f"{path}: seeds is {number!r}; give the number of pre-training seeds by which claims "
            "are judged, 1 to 100, here or in the profile, like `seeds: 3`"
        )
    return list(range(1, int(number) + 1))


def _read_column(
    name: str, settings: dict[str, Any], profile: Profile, columns: Sequence[Column]
) -> Column:
    """Read a column; the `columns` before it are those that it may be a mean of."""
    names = settings.pop("mean_of", [])
    unknown = set(names) - {column.name for column in columns}
    if unknown:
        raise ValueError(f"no column {', '.join(sorted(unknown))} before it")
    settings["mean_of"] = [column for column in columns if column.name in names]
    settings["finetune"] = {**profile.finetune, **settings.get("finetune", {})}
    if "evaluate" in settings:
        settings["evaluate"] = {**profile.evaluate, **settings["evaluate"]}
    if "features" in settings:
        settings["features"] = {**profile.features, **settings["features"]}
    column = Column(name, **settings)
    if column.unit not in UNITS:
        raise ValueError(f"column {name}: unit is {column.unit}; allowed: {', '.join(UNITS)}")
    return column


def _pop_flag(settings: dict[str, Any], name: str) -> bool:
    """Remove a flag from the settings of a row, and return it; False without one."""
    text = settings.pop(name, "false")
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text}; allowed: true, false")
    return text == "true"


def _read_row(name: str, settings: dict[str, Any], profile: Profile) -> Row | None:
    """Read a row; None where its `profiles` or `not_profiles` leave it out."""
    excluded = settings.pop("not_profiles", ())
    profiles = settings.pop("profiles", [profile.name])
    if profile.name in excluded or profile.name not in profiles:
        return None
    has_teacher = _pop_flag(settings, "teacher")
    is_untrained = _pop_flag(settings, "untrained")
    is_ensemble = _pop_flag(settings, "ensemble")
    pretrain = {**profile.pretrain}
    if has_teacher:
        pretrain.update(profile.student)
    pretrain.update(settings.pop("pretrain", {}))
    if is_untrained:
        pretrain.update(UNTRAINED)
    published = settings.pop("published", {})
    return Row(
        name,
        pretrain,
        published={column: float(figure) for column, figure in published.items()},
        untrained=is_untrained,
        teacher=Row(f"{name}: teacher", profile.pretrain) if has_teacher else None,
        ensemble=profile.seeds if is_ensemble else (),
        **settings,
    )


def _read_claims(
    path: Path, tree: Sequence[Mapping[str, Any]], absent_rows: set[str]
) -> list[Claim]:
    """Read the claims but those of rows that a profile does not have."""
    claims = []
    for settings in tree:
        with _named(f"{path}, claims"):
            claim = Claim(**settings)
            if claim.within is not None:
                claim = claim._replace(within=float(claim.within))
        if not absent_rows & {claim.better, claim.worse}:
            claims.append(claim)
    return claims


def _check_claims(path: Path, claims: Sequence[Claim], rows: set[str], columns: set[str]) -> None:
    """Check that the rows and columns of the claims are in the table."""
    for claim in claims:
        unknown = {claim.better, claim.worse} - rows
        unknown |= {claim.column, claim.worse_column or claim.column} - columns
        if unknown:
            names = ", ".join(sorted(unknown))
            raise InputError(f"{path}: a claim names {names}, which the table does not have")
        if claim.expected not in EXPECTED:
            raise InputError(
                f"{path}: a claim is expected {claim.expected!r}; allowed: {', '.join(EXPECTED)}"
            )
