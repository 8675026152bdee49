r"""Run a recipe on a GPU that computes nothing, and count launches, copies and waits of each step.

It finds, without a GPU, whatever breaks on the way to one: types, devices, compilers, versions,
places where the host waits. Numbers are garbage, so losses mean nothing, and what a shape depends
on must not be computed on the device. Needs a CUDA build of torch, and CUDA's headers; those of pip
will do, in the folder to which CUDA_HOME points:

    python -m venv cuda && cuda/bin/pip install torch==2.11.0 transformers==5.17.0 accelerate \
        pyarrow scikit-learn jinja2 matplotlib "nvidia-cuda-crt==13.0.*"
    export CUDA_HOME=$(echo cuda/lib/python3*/site-packages/nvidia/cu13)
    cuda/bin/python tools/null_gpu/count_launches.py counts.json recipes/pretrain.py \
        --config recipes/configs/pretrain/bert_base.yaml \
        --store data/store --max_steps 5 --eval_strategy no --save_strategy no --overwrite_run true

The first argument gets the counts as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")
LIBRARY_VARIABLE = "NULL_GPU_LIBRARY"
MOST_KERNELS = 40


def build_library() -> Path:
    """Compile the library into a temporary folder, under the driver's name."""
    folder = Path(tempfile.gettempdir()) / "bert_recipes_null_gpu"
    folder.mkdir(exist_ok=True)
    library = folder / "libcuda.so.1"
    command = [
        "g++",
        "-O1",
        "-shared",
        "-fPIC",
        "-std=c++17",
        f"-I{CUDA_HOME}/include",
        str(HERE / "null_gpu.cpp"),
    ]
    subprocess.run([*command, "-o", str(library), "-ldl"], check=True)
    link = folder / "libcuda.so"
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    return library


def restart_with(library: Path) -> None:
    """Become the same command with the library loaded before everything else."""
    environment = os.environ | {
        LIBRARY_VARIABLE: str(library),
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(library.parent),
        "TRITON_LIBCUDA_PATH": str(library.parent),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH")])
        ),
        "HF_HUB_OFFLINE": "1",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


class NullGpu:
    """Reads the counts of the loaded library."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.null_gpu_read.restype = ctypes.c_char_p

    def read(self) -> dict[str, int]:
        """Return name -> count since the last reading."""
        counts = {}
        for line in self._library.null_gpu_read().decode().splitlines():
            name, count = line.rsplit("\t", 1)
            counts[name] = int(count)
        return counts


def count_steps(script: str, flags: list[str], gpu: NullGpu) -> list[tuple[dict[str, int], float]]:
    """Run a recipe; return the counts and the seconds of the host of each optimiser step."""
    from transformers import Trainer, TrainerCallback

    steps: list[tuple[dict[str, int], float]] = []

    class Counter(TrainerCallback):
        """Reads the counts at the end of each step."""

        since = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            """Read."""
            now = time.perf_counter()
            steps.append((gpu.read(), now - self.since))
            self.since = now

    build = Trainer.__init__

    def build_and_count(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self.add_callback(Counter())

    Trainer.__init__ = build_and_count
    sys.argv = [script, *flags]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        pass
    except (
        RuntimeError,
        ValueError,
        IndexError,
        ZeroDivisionError,
    ) as error:  # a shape or a sum that was computed on the device
        print(f"ended by {type(error).__name__}: {str(error)[:300]}")
    return steps


def write_results(path: Path, command: list[str], counts: dict[str, int]) -> None:
    """Write the counts of one step, all launches together, with versions and date."""
    import torch
    import transformers

    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "command": command}
    results |= {"torch": torch.__version__, "transformers": transformers.__version__}
    results["launches"] = sum(count for name, count in counts.items() if name.startswith("launch"))
    results |= {name: count for name, count in counts.items() if not name.startswith("launch")}
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Count, print and write."""
    if LIBRARY_VARIABLE not in os.environ:
        restart_with(build_library())
    results_file, script, *flags = sys.argv[1:]
    steps = count_steps(script, flags, NullGpu(os.environ[LIBRARY_VARIABLE]))
    for number, (counts, seconds) in enumerate(steps, start=1):
        launches = sum(count for name, count in counts.items() if name.startswith("launch"))
        others = {name: count for name, count in counts.items() if not name.startswith("launch")}
        print(f"step {number}: {launches} launches, {1000 * seconds:.1f} ms of the host, {others}")
    if len(steps) > 1:
        # The last but one: the last step may be followed by more.
        kernels = sorted(steps[-2][0].items(), key=lambda item: -item[1])
        for name, count in kernels[:MOST_KERNELS]:
            print(f"{count:6} {re.sub(r'^launch (_ZN2at6native)?', '', name)[:120]}")
        write_results(Path(results_file), [script, *flags], steps[-2][0])


if __name__ == "__main__":
    main()
