"""A large corpus through recipes/prepare_corpus.py: rate, memory, and a kill in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.files import written_aside
from speed.generated_text import NUM_WORDS, make_words
from speed.synthetic import ZIPF_EXPONENT


SENTENCES = (3, 9)  # of a document


def write_documents(folder: Path, documents: int, files: int, seed: int = 12345) -> list[Path]:
    """Write made-up documents as text files of equal numbers: a sentence a line, a blank line between documents.

    Args:
        folder: Gets the files; those that are there already are kept.
        documents: In all; a multiple of files.
        files: How many files.
        seed: The same seed gives the same text.
    """
    words = make_words(np.random.default_rng(seed), NUM_WORDS)
    cumulative = np.cumsum(np.arange(1, NUM_WORDS + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    paths = []
    for number in range(files):
        path = folder / f"{number:04}.txt"
        paths.append(path)
        if path.is_file():
            continue
        rng = np.random.default_rng([seed, number])
        with written_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
            file.writelines(_documents(rng, words, cumulative, documents // files))
    return paths


def _documents(rng: np.random.Generator, words: np.ndarray, cumulative: np.ndarray, count: int) -> Iterator[str]:
    for sentences in rng.integers(*SENTENCES, count):
        sizes = np.clip(rng.lognormal(2.75, 0.55, int(sentences)), 3, 60).astype(int)
        numbers = np.searchsorted(cumulative, rng.random(int(sizes.sum())) * cumulative[-1])
        cut = np.split(words[numbers], np.cumsum(sizes)[:-1])
        yield "".join(f"{' '.join(part).capitalize()}.\n" for part in cut) + "\n"


@dataclass
class Outcome:
    """How a preparation went.

    Attributes:
        seconds: Wall clock, start-up included.
        peak_mb: Resident memory of the largest of its processes, looked at twenty times a second.
        exit_code: Negative: the signal that killed it.
    """

    seconds: float
    peak_mb: float
    exit_code: int


@dataclass
class CorpusRun:
    """Calls recipes/prepare_corpus.py.

    Attributes:
        script: Its path.
        flags: Of all calls.
        log: Gets what it says.
    """

    script: Path
    flags: Sequence[str]
    log: Path

    def prepare(self, files: Sequence[Path], output_dir: Path, kill_after_shards: int | None = None) -> Outcome:
        """Prepare a store; `kill -9` for all its processes once so many shards are done.

        Raises:
            InputError: It failed by itself.
        """
        command = [sys.executable, str(self.script), *self.flags, "--output_dir", str(output_dir)]
        begin, peak = time.monotonic(), 0.0
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [*command, "--files", *map(str, files)], stdout=log, stderr=log, start_new_session=True
            )
            shards = output_dir.with_name(f".{output_dir.name}.shards") / "shards"
            while process.poll() is None:
                peak = max(peak, peak_mb(process.pid))
                if kill_after_shards is not None and len(list(shards.glob("[0-9]*"))) >= kill_after_shards:
                    os.killpg(process.pid, signal.SIGKILL)
                    kill_after_shards = None
                time.sleep(0.05)
        if process.returncode not in (0, -signal.SIGKILL):
            raise InputError(f"prepare_corpus.py ended with {process.returncode}; {self.log} says why")
        return Outcome(time.monotonic() - begin, peak, process.returncode)


def peak_mb(pid: int) -> float:
    """Largest resident memory up to now of a process and its children, each for itself; 0 where the system does not tell.

    From /proc, not from the system's account of resources: that begins with the memory of the process which started them.
    """
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    own = [int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")]
    return max([*own, *(peak_mb(int(child)) for child in children)], default=0.0)


def measure_large_corpus(run: CorpusRun, files: Sequence[Path], work_dir: Path) -> dict[str, Any]:
    """A tenth of the files, all of them, and all of them with a kill in the middle.

    Args:
        run: How.
        files: Of the corpus.
        work_dir: Gets the stores.

    Returns:
        Sizes, rates, memory, and whether the killed preparation made the same store.
    """
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    tenth = run.prepare(files[: max(1, len(files) // 10)], work_dir / "tenth")
    whole = run.prepare(files, work_dir / "whole")
    store = open_store(work_dir / "whole")
    shards = len(store.metadata["shards"])
    killed = run.prepare(files, work_dir / "killed", kill_after_shards=shards // 2)
    resumed = run.prepare(files, work_dir / "killed")
    return {
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
    }
