"""Runs the pre-training recipe again and again in forked children and kills them; what is imported is imported once.

python tests/invariants/killed_runs.py '{"argv": [...], "output_dir": ..., "kills": 50, "signal": 9, "seed": 0}'

Prints one JSON line: what happened to each child, and how many complete runs there were.
"""

import json
import os
import random
import re
import runpy
import shutil
import sys
import time
from pathlib import Path
from typing import Any

# Everything heavy, before the first fork; nothing of it may start a thread.
import accelerate  # noqa: F401
import torch  # noqa: F401
import transformers.trainer  # noqa: F401

import bert_recipes.model_card
import bert_recipes.pretraining
import bert_recipes.pushing
import bert_recipes.reports.pretraining_facts
import bert_recipes.reports.writing
import bert_recipes.training  # noqa: F401
from bert_recipes.checkpointing import last_complete, list_checkpoints, why_incomplete
from bert_recipes.run_folder import RESULTS_FILE


RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "pretrain.py"


def start(argv: list[str], log: Path) -> int:
    """Fork a child that runs the recipe; its pid."""
    pid = os.fork()
    if pid:
        return pid
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [str(RECIPE), *argv]
    code = 1
    try:
        runpy.run_path(str(RECIPE), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """Exit code of a child, negative for a signal; None while it still runs after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def where_it_fell(folder: Path) -> str:
    """What a child was doing when it died."""
    if any(folder.glob(".aside-saving/*")):
        return "writing a checkpoint"
    if any(folder.glob(".aside-*")):
        return "putting one in place or deleting one"
    return "between saves" if list_checkpoints(folder) else "before the first save"


def check_where_it_began(said: str, before: Path | None, after: list[Path]) -> None:
    """A life goes on from the newest checkpoint that was whole, and from nothing else."""
    begun = re.search(r"goes on from (checkpoint-\d+)", said)
    if begun:
        assert before is not None, said[-2000:]
        assert begun[1] == before.name, (begun[1], before.name)
    elif before is not None:  # it ended before it came to that
        assert after[-1] == before, said[-2000:]


def keep(folder: Path, number: int) -> None:
    """Put what a complete run has left beside its folder, which goes."""
    for name in ("model.safetensors", "trainer_state.json"):
        shutil.copy(folder / name, folder.parent / f"finished-{number}-{name}")
    shutil.rmtree(folder)


def main() -> None:
    """Kill until it is enough, checking what each life leaves; the last run comes to its end."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    folder, rng = Path(told["output_dir"]), random.Random(told["seed"])
    log = folder.parent / "child.log"
    lives: list[dict[str, Any]] = []
    finished = 0
    while len(lives) < told["kills"] or folder.exists():
        before, _ = last_complete(folder)
        pid = start(told["argv"], log)
        code = wait(pid, rng.uniform(*told["seconds"]) if len(lives) < told["kills"] else 600)
        if code is None:
            os.kill(pid, told["signal"])
            code = wait(pid, 120)
            assert code is not None, "the child does not end"
        said = log.read_text(encoding="utf-8", errors="replace")
        checkpoints = list_checkpoints(folder)
        check_where_it_began(said, before, checkpoints)
        for path in checkpoints:
            # A name is given to what is whole, and to nothing else.
            assert why_incomplete(path) is None, (path, why_incomplete(path))
        # Its results are there before it writes the report and the card: killed there, it has come to its end all the same.
        is_finished = (folder / RESULTS_FILE).is_file()
        assert is_finished or code != 0, said[-2000:]
        if code != 0:
            assert len(lives) < told["kills"], said[-2000:]
            lives.append({"code": code, "fell": "writing the report" if is_finished else where_it_fell(folder)})
        if is_finished:
            finished += 1
            keep(folder, finished)
    print(json.dumps({"lives": lives, "finished": finished}))  # noqa: T201


if __name__ == "__main__":
    main()
