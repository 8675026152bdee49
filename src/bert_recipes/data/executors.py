"""Runs tasks by datatrove's executors: a pipeline of steps, once for each of so many ranks.

Our tasks see for themselves what is done already. The files in which datatrove notes that a task has ended are not asked
(``skip_completed=False``): they know nothing of a result that was damaged or deleted since.
"""

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.executor.base import PipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger as task_log
from datatrove.utils.stats import PipelineStats
from tqdm import tqdm

from bert_recipes.data.encoding import follow_parent
from bert_recipes.data.executor_arguments import ExecutorArguments
from bert_recipes.errors import InputError, describe_os_error


class LocalExecutor(LocalPipelineExecutor):
    """datatrove's executor for one machine, with processes that may be killed: its own pool would wait for them for ever.

    What a task says stands in its log; the terminal has one progress bar for all.

    Args:
        pipeline: Steps.
        tasks: How many ranks.
        workers: How many at the same time.
        logging_dir: Where the logs go.
        name: What the progress bar says.
    """

    def __init__(
        self, pipeline: Sequence[PipelineStep], *, tasks: int, workers: int, logging_dir: Path, name: str
    ) -> None:
        super().__init__(
            list(pipeline),
            tasks=tasks,
            workers=min(workers, tasks),
            logging_dir=str(logging_dir),
            skip_completed=False,
        )
        self.name = name

    def run(self) -> PipelineStats:
        """Run all tasks; the first that fails ends the others.

        Returns:
            What the steps counted, added up.
        """
        self.save_executor_as_json()
        context = get_context(self.start_method)
        # The processes are copies of one that has imported the steps.
        context.set_forkserver_preload(sorted({type(step).__module__ for step in self.pipeline}))
        others = set(active_children())
        pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=follow_parent)
        stats, is_whole = PipelineStats(), False
        try:
            running = [pool.submit(_run_task, self, rank) for rank in range(self.tasks)]
            for task in tqdm(as_completed(running), total=self.tasks, unit="task", desc=self.name):
                stats += task.result()
            is_whole = True
        except BrokenProcessPool as error:
            raise InputError(
                f"{self.name}: one of the {self.workers} processes was killed, probably for lack of memory; set workers lower "
                f"or free memory, and run again; logs: {self.logging_dir.resolve_paths('logs')}"
            ) from error
        finally:
            if not is_whole:
                # A task may have hours before it.
                for process in set(active_children()) - others:
                    process.terminate()
            pool.shutdown(cancel_futures=True)
        with self.logging_dir.open("stats.json", "wt") as file:
            stats.save_to_disk(file)
        return stats


def _run_task(executor: LocalExecutor, rank: int) -> PipelineStats:
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            return executor._run_for_rank(rank, 1)
    except (InputError, OSError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{reason} ({executor.name}, task {rank}; log: {log_of(executor, rank)})") from error


def log_of(executor: PipelineExecutor, rank: int) -> str:
    """The file with what a task said."""
    return str(executor.logging_dir.resolve_paths(f"logs/task_{rank:05d}.log"))


def run_on_ray(
    pipeline: Sequence[PipelineStep], arguments: ExecutorArguments, *, tasks: int, logging_dir: Path, name: str
) -> PipelineStats:
    """Run tasks on the Ray cluster that the environment names (``RAY_ADDRESS``), or on one of this machine.

    Returns:
        What the steps counted, added up.
    """
    if find_spec("ray") is None:
        raise InputError("executor 'ray' needs Ray; pip install ray")
    executor = RayPipelineExecutor(
        list(pipeline),
        tasks=tasks,
        workers=min(arguments.workers or tasks, tasks),
        cpus_per_task=arguments.cpus_per_task or 1,
        mem_per_cpu_gb=arguments.mem_per_cpu_gb or 2,
        logging_dir=str(logging_dir),
        skip_completed=False,
    )
    # Here they are asked: this executor says nothing of tasks that failed. Those of an earlier run would speak for them.
    if executor.logging_dir.isdir("completions"):
        executor.logging_dir.rm("completions", recursive=True)
    executor.run()
    failed = executor.get_incomplete_ranks(skip_completed=True)
    if failed:
        raise InputError(
            f"{name}: {len(failed)} of {tasks} tasks failed; log of the first: {log_of(executor, failed[0])}"
        )
    stats = PipelineStats()
    for rank in range(tasks):
        with executor.logging_dir.open(f"stats/{rank:05d}.json") as file:
            stats += PipelineStats.from_json(json.load(file))
    return stats


def slurm_jobs(
    pipeline: Sequence[PipelineStep],
    arguments: ExecutorArguments,
    *,
    tasks: int,
    logging_dir: Path,
    name: str,
    depends: SlurmPipelineExecutor | None = None,
) -> SlurmPipelineExecutor:
    """Describe an array of Slurm jobs; ``run`` submits it, after those that it depends on.

    Args:
        pipeline: Steps.
        arguments: Partition, time and so on.
        tasks: How many ranks, one a job.
        logging_dir: Where the logs go; all nodes must see it.
        name: Name of the job.
        depends: Jobs that must have ended well before.
    """
    return SlurmPipelineExecutor(
        list(pipeline),
        tasks=tasks,
        time=str(arguments.time),
        partition=str(arguments.partition),
        cpus_per_task=arguments.cpus_per_task or 1,
        mem_per_cpu_gb=arguments.mem_per_cpu_gb or 2,
        workers=-1 if arguments.workers is None else arguments.workers,
        job_name=name,
        qos=arguments.qos,
        env_command=arguments.env_command,
        # Otherwise a job whose tasks have failed would wait for them for ever.
        sbatch_args={"kill-on-invalid-dep": "yes", **arguments.sbatch_options},
        depends=depends,
        logging_dir=str(logging_dir.absolute()),
        skip_completed=False,
    )


def submit(jobs: SlurmPipelineExecutor) -> None:
    """Hand jobs to Slurm, those that they depend on first."""
    if shutil.which("sbatch") is None:
        raise InputError("executor 'slurm' needs sbatch on the PATH: give the command on a login node")
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        raise InputError(
            "executor 'slurm' submits jobs, which a task of an array cannot: give the command on a login node"
        )
    try:
        jobs.run()
    except subprocess.CalledProcessError as error:
        raise InputError(
            f"sbatch refused the job (exit code {error.returncode}); what it said stands above"
        ) from error


@contextmanager
def messages_in_task_log() -> Iterator[None]:
    """What this package logs goes to the log of the task at hand."""
    package, handler = logging.getLogger("bert_recipes"), _TaskLogHandler()
    before = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(before)


class _TaskLogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        task_log.log(record.levelname, record.getMessage())


def total(stats: PipelineStats, step: int, name: str) -> int:
    """What a step of the pipeline counted under a name."""
    value: Any = stats.stats[step].stats.get(name, 0)
    # As it was counted, or as it was read back.
    return int(value["total"] if isinstance(value, dict) else getattr(value, "total", value))
