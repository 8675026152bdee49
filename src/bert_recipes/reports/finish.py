"""Finish a run: report, card, push.

Whatever goes wrong with report or card is a warning, for the run itself is done.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_recipes.checkpointing import may_replace_card
from bert_recipes.errors import saving
from bert_recipes.reports.card import name_repository, write_card_of_run
from bert_recipes.reports.facts import NUM_EXAMPLES, read_object, write_facts
from bert_recipes.reports.page import write_report
from bert_recipes.run_folder import (
    CONFIG_FILE,
    FACTS_FILE,
    MARKDOWN_FILE,
    PAGE_FILE,
    RESULTS_FILE,
    TASK_FILE,
)
from bert_recipes.shipped import command_hint
from bert_recipes.tasks.task import CLASSIFICATION_KINDS
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)


def finish_run(
    trainer: Any,
    results: dict[str, Any],
    *,
    gather: Callable[[], Mapping[str, Any]],
    table: Callable[[Mapping[str, Any]], str],
    push: Callable[[], str | None],
    files: Iterable[Path] = (),
) -> None:
    """Write report and card, print the results, push.

    All processes call it.

    Args:
        trainer: Of the run.
        results: Those of all_results.json.
        gather: Returns what report.json holds.
        table: Formats the results.
        push: Returns the model's page on the Hub or None.
        files: What the recipe has written beside the model.
    """
    args = trainer.args
    folder = Path(args.output_dir)
    is_main = trainer.is_world_process_zero()
    report = report_run(folder, gather, is_main=is_main)
    if is_main:
        print(table(results))  # noqa: T201  (the recipe's output)
        card = write_card_of_run(folder)
        names = ["model", RESULTS_FILE]
        names += [file.name for file in (*files, *report, *card)]
        print(f"{', '.join(names)}: {folder}\n\n{what_next(folder)}")  # noqa: T201
        if args.push_to_hub and args.hub_revision in (None, "main"):
            # `make push` may have named another one meanwhile.
            name_repository(folder, str(args.hub_model_id))
    url = push()
    if url is not None and is_main:
        print(f"on the Hub: {url}")  # noqa: T201


def what_next(folder: Path) -> str:
    """Return predictions for three held-out sentences, and the commands to go on with."""
    lines = []
    commands = {"look": f"{folder / PAGE_FILE} (in a browser)"}
    is_task = (folder / TASK_FILE).is_file()
    if is_task and _predicts(folder):
        task = read_task_file(folder / TASK_FILE)
        is_text = len(task.text_columns) == 1 and task.kind in CLASSIFICATION_KINDS
        rows = "texts.txt" if is_text else "rows.jsonl"
        commands["predict"] = command_hint(
            checkout=f"make predict MODEL={folder} INPUT={rows}",
            wheel=f"bert-recipes predict --model_name_or_path {folder} --input_file {rows}",
        )
    elif not is_task:
        held_out = read_object(folder / FACTS_FILE).get("held_out") or {}
        masks = held_out.get("masks")
        if masks:
            lines.append("held-out text, with the most likely tokens at [MASK?]:")
            lines.extend(_describe_mask(mask) for mask in masks[:NUM_EXAMPLES])
            lines.append("")
        commands["fine-tune"] = command_hint(
            checkout=f"make glue TASK=mrpc MODEL={folder}",
            wheel=f"bert-recipes finetune --config glue --task mrpc --model_name_or_path {folder}",
        )
        flags = f"--task_file my_task.yaml --model_name_or_path {folder}"
        commands["your task"] = command_hint(
            checkout=f"make finetune TASK_FILE=my_task.yaml MODEL={folder}",
            wheel=f"bert-recipes finetune {flags}",
        )
    commands["share"] = command_hint(
        checkout=f"make push RUN={folder} REPO=owner/name",
        wheel=f"bert-recipes push-to-hub --run {folder} --repo owner/name",
    )
    lines.append("next:")

    for purpose, command in commands.items():
        lines.append(f"  {purpose:<12}{command}")
    return "\n".join(lines)


def _predicts(folder: Path) -> bool:
    """Tell whether recipes/predict.py takes a fine-tuned run.

    A BiLSTM is in no checkpoint, and the stage of TinyBERT's layers trains no head.
    """
    settings, _ = read_tree(folder / CONFIG_FILE)
    return settings.get("bilstm") != "true" and settings.get("distil") != "intermediate"


def _describe_mask(mask: Mapping[str, Any]) -> str:
    """Return a line with a hidden token in its text, and the likeliest guesses."""
    guesses = []
    for piece, share in mask["guesses"][:3]:
        guesses.append(f'"{piece}" {share:.0%}')
    before = mask["before"][-48:]
    after = mask["after"][:24]
    text = f"{before:>48} [MASK?] {after:<24}"
    likeliest = ", ".join(guesses)
    truth = mask["truth"]
    return f'  {text}  {likeliest}; right: "{truth}"'


def report_run(
    folder: Path, gather: Callable[[], Mapping[str, Any]], *, is_main: bool
) -> list[Path]:
    """Write report.json and the report of a run; return the files, none where that failed.

    Every process calls it, after all other files are written; `is_main` writes.

    Args:
        folder: Of the run.
        gather: Returns what report.json holds.
        is_main: Whether this process writes.
    """
    if is_main:
        # Of a run that resumes, an older report would tell of another model. What cannot be deleted
        # cannot be written either.
        for name in (FACTS_FILE, MARKDOWN_FILE, PAGE_FILE):
            with contextlib.suppress(OSError):
                (folder / name).unlink(missing_ok=True)
    files: list[Path] = []
    with _without_harm(folder):
        facts = gather()
        if is_main:
            with saving(folder):
                facts_file = write_facts(folder, facts)
            files = [*write_report(folder), facts_file]
    return files


def report_sweep(folder: Path) -> list[Path]:
    """Write the report at the end of a sweep; return its files, none where that failed."""
    files: list[Path] = []
    with _without_harm(folder):
        files = write_report(folder)
        # Its card was written before it was chosen.
        best_run = (folder / "best").resolve()
        if may_replace_card(best_run):
            write_card_of_run(best_run)
    return files


@contextlib.contextmanager
def _without_harm(folder: Path) -> Iterator[None]:
    """Make a warning of whatever goes wrong: no training is lost for the sake of a report."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        command = command_hint(
            checkout=f"make report RUN={folder}", wheel=f"bert-recipes write-report --runs {folder}"
        )
        logger.warning(
            "no report (%s); everything else is finished and in %s: `%s` tries again",
            reason,
            folder,
            command,
        )
        logger.debug("what the report met", exc_info=True)
