"""Push a finished run, a checkpoint of it, or any model folder to the Hub.

    python recipes/push_to_hub.py --run runs/quickstart --repo me/my-bert

A new repository is private. What is uploaded is listed first; an upload that was interrupted goes
on with the same command. The token comes from `hf auth login` or from HF_TOKEN in the environment.
"""

import logging
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.checkpointing import read_run_ids, read_step
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, PushError, run_cli
from bert_recipes.hub_access import refuse_token_flags
from bert_recipes.run_folder import CARD_FILE, STATE_FILE
from bert_recipes.settings import option, required


@dataclass
class PushArguments:
    """Choose what is pushed, and where to."""

    run: str = required("folder of a finished run or of a checkpoint")
    repo: str = required("owner/name on the Hub")
    revision: str | None = option(None, "branch; made where there is none; default: main")
    private: bool | None = option(True, "a new repository is private")
    tags: list[str] | None = option(None, "tags for the model card")
    checkpoints: bool = option(False, "also the models of its checkpoints")
    overwrite: bool = option(False, "replace another model in the repository")
    message: str | None = option(None, "of the commit; default: says the step")
    dry_run: bool = option(False, "only list what would be uploaded")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^/\s]+/[^/\s]+", self.repo):
            raise InputError(
                f"--repo '{self.repo}' is not NAMESPACE/NAME: give your name on the Hub, or that "
                "of your organization, and the "
                "repository's, for example me/my-bert"
            )


def main() -> None:
    """Check the folder, list it, ask the Hub, upload."""
    refuse_token_flags(sys.argv[1:])
    (args,) = parse_arguments(PushArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.hub import (
        PushTarget,
        collect_files,
        open_target,
        push,
        push_command_of,
        warn_of_readers,
    )

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = Path(args.run)
    names = collect_files(folder, with_checkpoints=args.checkpoints)
    sizes = {name: (folder / name).stat().st_size for name in names}
    for name, size in sizes.items():
        print(f"{size:>15,}  {name}")
    print(f"{sum(sizes.values()):>15,}  bytes in {len(names)} files of {folder}")
    if args.dry_run:
        if args.private is False:
            warn_of_readers(args.repo)
        return
    run_ids = read_run_ids([folder])
    tags = tuple(args.tags or ())
    target = PushTarget(args.repo, args.revision, args.private, args.overwrite, tags, run_ids)
    target = open_target(target, later="try again later with the same command")
    if CARD_FILE in names and args.revision in (None, "main"):
        # Takes seconds, and few folders have a card of ours.
        from bert_recipes.reports.card import name_repository

        name_repository(folder, target.repo_id, tags)
        names = collect_files(folder, with_checkpoints=args.checkpoints)
    content = f"step {read_step(folder)}" if STATE_FILE in names else "a model"
    try:
        page = push(target, folder, names, args.message or f"Upload of {content}")
    except PushError as error:
        command = push_command_of(sys.argv[1:])
        raise PushError(
            f"{error}; what is uploaded already is not sent again: {command}"
        ) from error
    print(page)


if __name__ == "__main__":
    run_cli(main)
