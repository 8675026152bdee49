"""Starts sample processes one after the other and puts what they say into the results file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speed.results import ResultsFile
from speed.spec import SampleSpec


# A sample that takes longer hangs.
MAX_SAMPLE_SECONDS = 3600.0


class Deadline:
    """How much of a time limit is left.

    Args:
        seconds: From now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begin = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 when it is over."""
        return self.seconds - self.elapsed


class SampleRunner:
    """Runs samples.

    Args:
        results: Gets a record for each.
        run: Name of this run, in every record.
        threads: OMP_NUM_THREADS of the samples; None leaves it as it is.
    """

    def __init__(self, results: ResultsFile, run: str, threads: int | None = None) -> None:
        self.results = results
        self.run_name = run
        benchmarks = Path(__file__).resolve().parents[1]
        sources = [str(benchmarks), str(benchmarks.parent / "src")]
        path = os.pathsep.join(filter(None, [*sources, os.environ.get("PYTHONPATH")]))
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        self._environment |= {"TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false")}
        if threads is not None:
            self._environment["OMP_NUM_THREADS"] = str(threads)

    def run(
        self,
        spec: SampleSpec,
        *,
        suite: str,
        case: str,
        role: str = "sample",
        round_number: int | None = None,
        run_name: str | None = None,
        timeout: float = MAX_SAMPLE_SECONDS,
    ) -> dict[str, Any]:
        """Run one sample and record it; a sample that fails is a record with its `error`."""
        start = time.monotonic()
        result, error = self._start(spec, timeout)
        record: dict[str, Any] = {
            "suite": suite,
            "case": case,
            "role": role,
            "side": spec.side,
            "round": round_number,
            "run": run_name or self.run_name,
            "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "wall_seconds": round(time.monotonic() - start, 1),
            "machine": result.pop("machine", None),
            "spec": spec.describe(),
            **({"error": error} if error else {"result": result}),
        }
        self.results.append(record)
        return record

    def add(self, record: Mapping[str, Any]) -> None:
        """Record what is no sample: the outcome of a search."""
        self.results.append({"run": self.run_name, "date": time.strftime("%Y-%m-%dT%H:%M:%S"), **record})

    def _start(self, spec: SampleSpec, timeout: float) -> tuple[dict[str, Any], str | None]:
        """What the process wrote, or why it wrote nothing."""
        with tempfile.TemporaryDirectory(prefix="bert-recipes-sample-") as folder:
            told, answer = Path(folder) / "spec.json", Path(folder) / "result.json"
            spec.write(told)
            command = [sys.executable, "-m", "speed.sample", str(told), str(answer)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=timeout, env=self._environment
                )
            except subprocess.TimeoutExpired:
                return {}, f"still running after {timeout:.0f} s"
            if answer.is_file():
                return json.loads(answer.read_text(encoding="utf-8")), None
            return {}, describe_failure(done.returncode, done.stderr)


def describe_failure(code: int, stderr: str) -> str:
    """One line of what a process said last."""
    if code < 0:
        return f"ended by signal {-code}" + (" (killed: out of memory?)" if code == -9 else "")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "Error" in line or "error" in line), lines[-1] if lines else "")
    return f"exit code {code}: {said[:400]}"
