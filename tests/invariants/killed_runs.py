"""Runs the pre-training recipe again and again in forked children and kills them; what is imported
is imported once.

python tests/invariants/killed_runs.py '{"argv": [...], "output_dir": ..., "kills": 50, "signal": 9,
"inside_a_save": 10, "between": [0.5, 2], "seed": 0}'

`between` is in times of what a child takes from its start to its first checkpoint, which is
measured first. Prints one JSON line: what happened to each child, and how many complete runs there
were.
"""

import json
import os
import random
import re
import runpy
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

# Everything heavy, before the first fork; nothing of it may start a thread.
import accelerate  # noqa: F401
import torch  # noqa: F401
import transformers.trainer  # noqa: F401

import bert_recipes.hub
import bert_recipes.reports.finish
import bert_recipes.reports.pretraining_facts
import bert_recipes.training.pretraining
import bert_recipes.training.run  # noqa: F401
from bert_recipes.checkpointing import last_complete, list_checkpoints, why_incomplete
from bert_recipes.run_folder import RESULTS_FILE, UNFINISHED_FILE


WRITING = "writing a checkpoint"
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
    """Exit code of a child, negative for a signal; None while it still runs after so many
    seconds.
    """
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def seconds_to_first_save(argv: list[str], folder: Path, log: Path) -> float:
    """How long this machine takes, as busy as it is, from the fork to the first whole checkpoint;
    that run goes.
    """
    begin = time.monotonic()
    pid = start(argv, log)
    while last_complete(folder)[0] is None:
        assert os.waitpid(pid, os.WNOHANG)[0] == 0, log.read_text(
            encoding="utf-8", errors="replace"
        )[-2000:]
        assert time.monotonic() - begin < 120, "no checkpoint"
        time.sleep(0.002)
    seconds = time.monotonic() - begin
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    shutil.rmtree(folder)
    return seconds


def where_it_fell(folder: Path) -> str:
    """What a child was doing when it died."""
    if any(folder.glob(".aside-saving/*")):
        return WRITING
    if any(folder.glob(".aside-*")):
        return "putting one in place or deleting one"
    return "between saves" if list_checkpoints(folder) else "before the first save"


def is_enough(lives: list[dict[str, Any]], settings: dict[str, Any]) -> bool:
    """Whether there were kills enough, and enough of them inside a save, for which as many kills
    again may be spent.
    """
    inside = sum(life["fell"] == WRITING for life in lives)
    return len(lives) >= settings["kills"] and (
        inside >= settings["inside_a_save"] or len(lives) >= 2 * settings["kills"]
    )


def check_where_it_began(output_text: str, before: Path | None, after: list[Path]) -> None:
    """A life is resumed from the newest checkpoint that was whole, and from nothing else."""
    started = re.search(r"is resumed from (checkpoint-\d+)", output_text)
    if started:
        assert before is not None, output_text[-2000:]
        assert started[1] == before.name, (started[1], before.name)
    elif before is not None:  # it ended before it came to that
        assert after[-1] == before, output_text[-2000:]


def keep(folder: Path, number: int) -> None:
    """Put what a complete run has left beside its folder, which goes."""
    for name in ("model.safetensors", "trainer_state.json"):
        shutil.copy(folder / name, folder.parent / f"finished-{number}-{name}")
    shutil.rmtree(folder)


def main() -> None:
    """Kill until it is enough, checking what each life leaves; the last run comes to its end."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    folder, rng = Path(settings["output_dir"]), random.Random(settings["seed"])
    log = folder.parent / "child.log"
    to_first_save = seconds_to_first_save(settings["argv"], folder, log)
    lives: list[dict[str, Any]] = []
    finished = 0
    while not (enough := is_enough(lives, settings)) or folder.exists():
        before, _ = last_complete(folder)
        # A trained run of which a life was killed in the report comes to its end: where that takes
        # long beside a first checkpoint, all further kills would fall there.
        is_trained = (folder / RESULTS_FILE).is_file()
        pid = start(settings["argv"], log)
        share = rng.uniform(*settings["between"])
        code = wait(pid, 600 if enough or is_trained else share * to_first_save)
        if code is None:
            os.kill(pid, settings["signal"])
            code = wait(pid, 120)
            assert code is not None, "the child does not end"
        output_text = log.read_text(encoding="utf-8", errors="replace")
        checkpoints = list_checkpoints(folder)
        check_where_it_began(output_text, before, checkpoints)
        for path in checkpoints:
            # A name is given to what is whole, and to nothing else.
            assert why_incomplete(path) is None, (path, why_incomplete(path))
        # Its results are there before it writes the report and the card: killed there, it goes on
        # with those.
        has_results = (folder / RESULTS_FILE).is_file()
        is_finished = has_results and not (folder / UNFINISHED_FILE).is_file()
        assert is_finished or code != 0, output_text[-2000:]
        if code != 0:
            assert not enough, output_text[-2000:]
            lives.append(
                {
                    "code": code,
                    "fell": "writing the report" if has_results else where_it_fell(folder),
                }
            )
        if is_finished:
            finished += 1
            keep(folder, finished)
    print(json.dumps({"lives": lives, "finished": finished}))  # noqa: T201


if __name__ == "__main__":
    main()
