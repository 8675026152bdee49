r"""Put a large made-up corpus through recipes/prepare_corpus.py: rate, memory, a kill in the middle
and a second start.

    python benchmarks/measure_preparation.py --documents 1000000 \
        --results_file docs/results/million_documents.json

Leaves text and stores in --work_dir (about twice the text), which a second call uses again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from generated import write_documents
from side_by_side import peak_of_group

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import iter_paragraphs
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import option
from bert_recipes.tokenization.training import train_wordpiece
from bert_recipes.training.speed import describe_machine


SCRIPT = Path(__file__).resolve().parents[1] / "recipes" / "prepare_corpus.py"


@dataclass
class MeasureArguments:
    """How large."""

    documents: int = option(1_000_000, "documents of three to eight sentences")
    files: int = option(100, "files; the documents are a multiple of it")
    work_dir: str = option("runs/large_corpus", "folder for text and stores")
    shard_gigabytes: float = option(0.05, "text of a shard")
    num_processes: int | None = option(None, "default: all cores")
    results_file: str | None = option(None, "also write the figures to this JSON file")

    def __post_init__(self) -> None:
        if self.files < 1 or self.documents < self.files or self.documents % self.files:
            raise InputError(
                f"documents is {self.documents}: a multiple of files ({self.files}) is allowed"
            )


class Outcome(NamedTuple):
    """How a preparation went: wall clock with start-up, peak of its largest process (looked at
    twenty times a second), exit code.
    """

    seconds: float
    peak_mb: float
    exit_code: int


def prepare(
    flags: Sequence[str], files: Sequence[Path], output: Path, kill_after_shards: int | None = None
) -> Outcome:
    """Call recipes/prepare_corpus.py; `kill -9` for all its processes once so many shards are
    done.
    """
    command = [
        sys.executable,
        str(SCRIPT),
        *flags,
        "--output_dir",
        str(output),
        "--files",
        *map(str, files),
    ]
    shards, log = (
        output.with_name(f".{output.name}.shards") / "shards",
        output.with_name("prepare.log"),
    )
    begin, peak = time.monotonic(), 0.0
    with log.open("ab") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        while process.poll() is None:
            peak = max(peak, peak_of_group(process.pid))
            if (
                kill_after_shards is not None
                and len(list(shards.glob("[0-9]*"))) >= kill_after_shards
            ):
                os.killpg(process.pid, signal.SIGKILL)
                kill_after_shards = None
            time.sleep(0.05)
    if process.returncode not in (0, -signal.SIGKILL):
        raise InputError(f"prepare_corpus.py ended with {process.returncode}; {log} says why")
    return Outcome(time.monotonic() - begin, peak, process.returncode)


def main() -> None:
    """Prepare a tenth of the files, all of them, and all of them with a kill in the middle;
    print.
    """
    (args,) = parse_arguments(MeasureArguments)
    work_dir = Path(args.work_dir)
    for name in ("tenth", "whole", "killed"):
        if (work_dir / name).exists():
            raise InputError(
                f"work_dir {work_dir} holds stores of an earlier measurement ({name}); delete them"
            )
    files = write_documents(work_dir / "text", args.documents, args.files)
    tokenizer = work_dir / "tokenizer"
    if not tokenizer.is_dir():
        train_wordpiece(iter_paragraphs(files[:2]), vocab_size=30522).save_pretrained(tokenizer)
    flags = [
        "--tokenizer",
        str(tokenizer),
        "--sentences",
        "lines",
        "--shard_gigabytes",
        str(args.shard_gigabytes),
    ]
    flags += ["--num_processes", str(args.num_processes)] if args.num_processes is not None else []
    tenth = prepare(flags, files[: max(1, len(files) // 10)], work_dir / "tenth")
    whole = prepare(flags, files, work_dir / "whole")
    store = open_store(work_dir / "whole")
    shards = len(store.metadata["shards"])
    killed = prepare(flags, files, work_dir / "killed", kill_after_shards=shards // 2)
    resumed = prepare(flags, files, work_dir / "killed")
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    results = {
        "documents": store.train.num_documents,
        "tokens": store.train.num_tokens,
        "text_megabytes": round(megabytes, 1),
        "shards": shards,
        "seconds": round(whole.seconds, 1),
        "megabytes_per_second": round(megabytes / whole.seconds, 2),
        "documents_per_second": round(store.train.num_documents / whole.seconds),
        "peak_memory_mb": {"a tenth": round(tenth.peak_mb), "all": round(whole.peak_mb)},
        "killed_after_seconds": round(killed.seconds, 1),
        "killed_exit_code": killed.exit_code,
        "resumed_in_seconds": round(resumed.seconds, 1),
        "same_store": open_store(work_dir / "killed").fingerprint == store.fingerprint,
        "num_processes": args.num_processes or "all cores",
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(results, indent=2))
    if args.results_file is not None:
        write_json(Path(args.results_file), results)


if __name__ == "__main__":
    run_cli(main)
