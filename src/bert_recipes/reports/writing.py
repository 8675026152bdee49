"""A report's files: written from a run's files, and at the end of a run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError, saving
from bert_recipes.reports.blocks import Report
from bert_recipes.reports.comparison import PLOT_FILE as COMPARISON_PLOT
from bert_recipes.reports.finetuning import finetuning_report
from bert_recipes.reports.markdown import to_markdown
from bert_recipes.reports.page import to_html
from bert_recipes.reports.pretraining import pretraining_report
from bert_recipes.reports.run_files import (
    FACTS_FILE,
    SWEEP_FILE,
    damage_as_one_line,
    read_run,
    read_sweep_file,
    write_facts,
)
from bert_recipes.reports.sweep import sweep_report
from bert_recipes.run_folder import RESULTS_FILE
from bert_recipes.whole_files import written_aside


logger = logging.getLogger(__name__)

MARKDOWN_FILE, PAGE_FILE = "report.md", "report.html"


def write_report(folder: Path) -> list[Path]:
    """Write report.md, report.html and the pictures of a finished run or of a sweep, from its files alone.

    Args:
        folder: Of the run or the sweep.

    Returns:
        The files, report.md first.

    Raises:
        InputError: The folder holds neither, its files are damaged, or it cannot be written to.
    """
    is_sweep = (folder / SWEEP_FILE).is_file() and not (folder / RESULTS_FILE).is_file()
    with damage_as_one_line(folder):
        if is_sweep:
            report = sweep_report(read_sweep_file(folder), folder.resolve().name)
        else:
            run = read_run(folder)
            report = finetuning_report(run) if run.kind == "finetuning" else pretraining_report(run)
    return save_report(report, folder)


def save_report(report: Report, folder: Path) -> list[Path]:
    """Write a report's files into a folder, each whole or not at all.

    Raises:
        InputError: The folder cannot be written to.
    """
    # Half of a surrogate pair, which JSON can hold, is no letter of UTF-8.
    texts = {MARKDOWN_FILE: to_markdown(report), PAGE_FILE: to_html(report)}
    contents = {name: text.encode(errors="replace") for name, text in texts.items()}
    paths = []
    with saving(folder):
        for name, content in (contents | report.pictures).items():
            with written_aside(folder / name) as aside:
                aside.write_bytes(content)
            paths.append(folder / name)
    return paths


def check_report_folder(folder: Path) -> None:
    """Refuse a folder in which a report would lie among other things, or replace a run's.

    Args:
        folder: For the report of a comparison; it may hold an older one.

    Raises:
        InputError: It is a file, or holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    own = {MARKDOWN_FILE, PAGE_FILE, COMPARISON_PLOT}
    others = sorted(path.name for path in folder.iterdir() if path.name not in own) if folder.is_dir() else []
    if others:
        raise InputError(f"output_dir: {folder} holds other files ({', '.join(others[:3])}); give a new folder")


def report_run(folder: Path, gather: Callable[[], Mapping[str, Any]], *, is_main: bool) -> list[Path]:
    """Leave report.json and the report in a run's folder; whatever goes wrong is a warning, for the run itself is done.

    Args:
        folder: The run's output_dir, all other files written.
        gather: Gives what report.json holds; called in every process.
        is_main: Whether this process writes.

    Returns:
        The files; none where the report failed, and in other processes.
    """
    if is_main:
        # Of a run that goes on, an older report would tell of another model. What cannot be deleted cannot be written either,
        # which is said below.
        with contextlib.suppress(OSError):
            for name in (FACTS_FILE, MARKDOWN_FILE, PAGE_FILE):
                (folder / name).unlink(missing_ok=True)

    def write() -> list[Path]:
        facts = gather()
        if not is_main:
            return []
        with saving(folder):
            facts_file = write_facts(folder, facts)
        return [*write_report(folder), facts_file]

    return _without_harm(folder, write)


def report_sweep(folder: Path) -> list[Path]:
    """`write_report` at the end of a sweep; what goes wrong is a warning.

    Args:
        folder: The sweep's, with its sweep.json.
    """
    return _without_harm(folder, lambda: write_report(folder))


def _without_harm(folder: Path, write: Callable[[], list[Path]]) -> list[Path]:
    try:
        return write()
    except Exception as error:  # whatever it is: hours of training are not lost for the sake of a report
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        logger.warning(
            "no report (%s); everything else is finished and in %s: `make report RUN=%s` tries again",
            reason,
            folder,
            folder,
        )
        logger.debug("what the report met", exc_info=True)
        return []
