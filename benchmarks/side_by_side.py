"""Run samples, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from sample import Result, Sample


HERE = Path(__file__).resolve().parent
# A sample that takes longer hangs.
MAX_SAMPLE_SECONDS = 3600.0


def run_sample(
    sample: Sample, threads: int | None = None, timeout: float = MAX_SAMPLE_SECONDS
) -> tuple[Result, str | None]:
    """Run a sample in a process of its own.

    Returns:
        Its result, and what went wrong.
    """
    with tempfile.TemporaryDirectory(prefix="bert-recipes-sample-") as folder:
        sample_file, result_file = Path(folder) / "sample.json", Path(folder) / "result.json"
        sample_file.write_text(json.dumps(asdict(sample)), encoding="utf-8")
        # No script: processes that a sample starts would import it anew.
        command = [sys.executable, "-c", "from measuring import answer; answer()"]
        command += [str(sample_file), str(result_file)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env=_environment(threads),
            )
        except subprocess.TimeoutExpired:
            return {}, f"still running after {timeout:.0f} s"
        if result_file.is_file():
            return json.loads(result_file.read_text(encoding="utf-8")), None
        return {}, describe_failure(done.returncode, done.stderr)


def _environment(threads: int | None) -> dict[str, str]:
    """Return the environment of a sample's process."""
    folders = [str(HERE), str(HERE.parent / "src")]
    if "PYTHONPATH" in os.environ:
        folders.append(os.environ["PYTHONPATH"])
    environment = dict(os.environ)
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    environment["HF_HUB_OFFLINE"] = "1"
    environment["TRANSFORMERS_VERBOSITY"] = "error"
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment


def describe_failure(code: int, stderr: str) -> str:
    """Return one line of what a process said last."""
    if code == -9:
        return "ended by signal 9 (killed: out of memory?)"
    if code < 0:
        return f"ended by signal {-code}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    message = (errors or lines or [""])[-1]
    return f"exit code {code}: {message[:400]}"
