"""Facts of a run: what stands in its card, and the file and key of the run's folder that it comes from."""

from __future__ import annotations

import html
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError
from bert_recipes.file_hash import hash_of
from bert_recipes.reports.run_files import FACTS_FILE
from bert_recipes.run_folder import CONFIG_FILE, RESULTS_FILE, name_of_run
from bert_recipes.run_origin import WEIGHTS_FILE


logger = logging.getLogger(__name__)

# Files of a run. card.yaml holds what the user says of the model.
RUN, RESULTS, MODEL, TASK, GIVEN = CONFIG_FILE, RESULTS_FILE, "config.json", "task.yaml", "card.yaml"
REPORT = FACTS_FILE
VOCABULARY, TOKENIZER = "vocab.txt", "tokenizer_config.json"
WEIGHTS_INDEX = f"{WEIGHTS_FILE}.index.json"
# Stands for the folder itself, whose name is a fact.
FOLDER = "."
# A fifth of English prose and few words of any other language; ours, as the share that is asked for.
_ENGLISH, _ENGLISH_SHARE = {"the", "of", "and", "to", "that", "is", "with", "this", "not", "it", "was"}, 0.1

Show = Callable[..., str | None]


@dataclass(frozen=True)
class Source:
    """Where a value stands.

    Attributes:
        file: In the run's folder; `FOLDER` for the folder itself.
        key: In a JSON or YAML file the way to the value, parts joined by "/" ("" for all of it); for other files what is taken of them.
    """

    file: str
    key: str


@dataclass(frozen=True)
class Fact:
    """A piece of the card.

    Attributes:
        name: What it is.
        shown: As it stands in the card.
        sources: What it is made of.
    """

    name: str
    shown: str
    sources: tuple[Source, ...]

    def __str__(self) -> str:
        return self.shown


class RunFiles:
    """The files of a finished run.

    Args:
        folder: The run's.

    Attributes:
        facts: All that were asked for and found, in their order.

    Raises:
        InputError: The folder holds no finished run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: list[Fact] = []
        self._opened: dict[str, Any] = {}
        for name in (RUN, RESULTS, MODEL):
            if not (folder / name).is_file():
                why = "the run has not come to its end" if name == RESULTS else "it is no run of this project"
                raise InputError(f"{folder} has no {name}: {why}; give the folder of a finished run")

    @property
    def is_fine_tuned(self) -> bool:
        """Whether it is a run of recipes/finetune.py, and not of recipes/pretrain.py."""
        return (self.folder / TASK).is_file()

    @cached_property
    def is_english(self) -> bool:
        """Whether English is put to the model: by what the user says, else by the words of its held-out text.

        Of a fine-tuned model of which neither is known True: its vocabulary decides then (`knows_words`).
        """
        given = self.value(GIVEN, "language")
        if given is not None:
            return "en" in given
        shown = [each for name in ("masks", "verdicts") for each in self.value(REPORT, f"held_out/{name}") or ()]
        parts = [str(each.get(name, "")) for each in shown for name in ("before", "after", "first", "second")]
        words = [word for word in " ".join(parts).lower().split() if word.isalpha()]
        return sum(word in _ENGLISH for word in words) >= _ENGLISH_SHARE * len(words) if words else self.is_fine_tuned

    @property
    def repository(self) -> tuple[str, str] | None:
        """File and key of the model's name on the Hub: said by the user, or where the run itself pushes it to.

        Of a run that pushes to a branch None: what is opened by the repository's name is the model on main.
        """
        if self.value(GIVEN, "repo_id") is not None:
            return GIVEN, "repo_id"
        is_pushed = self.value(RUN, "push_to_hub") == "true" and self.value(RUN, "hub_revision") in (None, "main")
        return (RUN, "hub_model_id") if is_pushed else None

    def value(self, file: str, key: str) -> Any:
        """What stands in a file; None where file or key are missing."""
        if file == FOLDER:
            return name_of_run(self.folder)
        if file not in self._opened:
            self._opened[file] = self._open(file)
        found = self._opened[file]
        for part in filter(None, key.split("/")):
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                return None
        return found

    def fact(self, name: str, file: str, key: str, show: Show | None = None) -> Fact | None:
        """A value as it is to be shown.

        Args:
            name: What it is.
            file: In the run's folder.
            key: In it.
            show: Value -> text, or None to leave it out; default: `as_it_is`.
        """
        return self.derived(name, [(file, key)], show or as_it_is)

    def derived(self, name: str, sources: Sequence[tuple[str, str]], show: Show) -> Fact | None:
        """A fact made of several values; None where one of them is missing."""
        values = [self.value(file, key) for file, key in sources]
        shown = None if any(value is None for value in values) else show(*values)
        if shown is None or shown == "":
            return None
        found = Fact(name, shown, tuple(Source(*source) for source in sources))
        self.facts.append(found)
        return found

    def names(self, file: str, key: str) -> list[str]:
        """The keys of a mapping in a file, or the numbers of a list as texts; none where it is missing."""
        value = self.value(file, key)
        if isinstance(value, list):
            return [str(number) for number in range(len(value))]
        return list(value) if isinstance(value, dict) else []

    @cached_property
    def weights(self) -> list[Path]:
        """The files of the model's weights."""
        if self.value(WEIGHTS_INDEX, "") is None:
            return [self.folder / WEIGHTS_FILE]
        names = self.value(WEIGHTS_INDEX, "weight_map")
        if not isinstance(names, dict):
            raise InputError(f"{self.folder / WEIGHTS_INDEX}: damaged: it has no weight_map")
        return sorted({self.folder / str(name) for name in names.values()})

    def _open(self, file: str) -> Any:
        path = self.folder / file
        if file == WEIGHTS_FILE:
            return _describe_weights(self.weights)
        if not path.is_file():
            return None
        if path.suffix == ".json":
            return _read_json(path)
        if path.suffix in (".yaml", ".yml"):
            return read_tree(path)[0]
        return {"sha256": hash_of(path), "lines": len(path.read_bytes().splitlines())}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged: {error}") from error


def _describe_weights(files: list[Path]) -> dict[str, Any] | None:
    """Parameters and bytes of safetensors files, and the hash of a single one; None where they are gone."""
    if not all(file.is_file() for file in files):
        return None
    parameters, types = 0, set()
    for file in files:
        try:
            with safe_open(file, "numpy") as opened:
                # Only shapes are read, no numbers.
                tensors = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118  (it is no mapping)
                parameters += sum(math.prod(tensor.get_shape()) for tensor in tensors)
                types |= {str(tensor.get_dtype()) for tensor in tensors}
        except SafetensorError as error:
            raise InputError(f"{file}: damaged: {error}") from error
    facts: dict[str, Any] = {"parameters": parameters, "bytes": sum(file.stat().st_size for file in files)}
    facts["types"] = ", ".join(sorted(types))
    return facts | ({"sha256": hash_of(files[0])} if len(files) == 1 else {})


# How values are shown


def as_it_is(value: Any) -> str | None:
    """A text as it was written, a whole number with its thousands, a list with commas; nothing of what is empty."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    if isinstance(value, list):
        return ", ".join(text for item in value if (text := as_it_is(item))) or None
    return cell(html.escape(str(value), quote=False))


def count(value: Any) -> str | None:
    """A whole number, also where JSON has it as a float or YAML as a text; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return f"{round(number):,}" if math.isfinite(number) else None


def decimals(places: int) -> Show:
    """A number with so many digits after the point."""
    return lambda value: f"{float(value):,.{places}f}"


def percent(value: Any) -> str:
    """A share, 0 to 1."""
    return f"{float(value):.1%}"


def size(value: Any) -> str:
    """Bytes in thousands, millions, ..."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value:,} bytes"


def hours(seconds: Any) -> str:
    """Seconds as hours, and as they are."""
    return f"{significant(float(seconds) / 3600)} ({float(seconds):,.1f} s)"


def significant(value: float) -> str:
    """A number with as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def short_hash(value: Any) -> str:
    """The first digits of a hash: enough to know it again."""
    return f"`{str(value)[:16]}`"


def code(value: Any) -> str:
    """A word of a file or a setting, which may hold a backtick itself."""
    text = cell(str(value))
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def cell(text: str) -> str:
    """A text that neither ends a cell of a table nor the line."""
    return " ".join(text.replace("|", "\\|").split())
