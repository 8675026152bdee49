"""Make the shards of a corpus by tasks on one machine or many.

This is the work of `recipes/prepare_on_cluster.py`. The plan is written before the tasks begin; a
task checks that its machine has the same files, settings and versions, makes the shards of its rank
that are not done, and nothing else. The store is joined when all have ended well, by one process.
"""

import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Literal

from bert_recipes.data.prepare import (
    CorpusArguments,
    Preparation,
    PreparationReport,
    format_report,
)
from bert_recipes.data.processes import count_cores, follow_parent
from bert_recipes.errors import InputError, describe_os_error
from bert_recipes.progress import Progress
from bert_recipes.settings import check_limits, option


try:
    from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
    from datatrove.executor.base import PipelineExecutor
    from datatrove.pipeline.base import PipelineStep
    from datatrove.utils.logging import logger as task_log
    from datatrove.utils.stats import PipelineStats
except ImportError as error:
    raise InputError(
        f"{error.name} is not installed; pip install 'bert-recipes[cluster]'"
    ) from error

# Settings of a scheduler only, by the executors that have it.
_EXECUTORS_OF_SETTING = {
    "partition": ("slurm",),
    "time": ("slurm",),
    "qos": ("slurm",),
    "env_command": ("slurm",),
    "sbatch_args": ("slurm",),
    "cpus_per_task": ("slurm", "ray"),
    "mem_per_cpu_gb": ("slurm", "ray"),
}


@dataclass(kw_only=True)
class ExecutorArguments:
    """Settings for the executor of the tasks: processes of this machine, Slurm or Ray."""

    executor: Literal["local", "slurm", "ray"] = option(
        "local", "processes of this machine, jobs of Slurm, or a Ray cluster"
    )
    tasks: int | None = option(None, "number of tasks; default: one per shard", least=1)
    workers: int | None = option(
        None, "tasks at the same time; default: all cores (local), no limit (slurm, ray)", least=1
    )
    logging_dir: str | None = option(
        None, "logs of the tasks; default: output_dir with .logs after it"
    )
    cpus_per_task: int | None = option(
        None, "slurm, ray: cores of a task, which encode if num_processes is not given; 1", least=1
    )
    mem_per_cpu_gb: int | None = option(None, "slurm, ray: memory for each core; 2", least=1)
    partition: str | None = option(None, "slurm: partition")
    time: str | None = option(None, "slurm: time limit of a task, for example 04:00:00")
    qos: str | None = option(None, "slurm: quality of service")
    env_command: str | None = option(
        None,
        "slurm: shell command that comes first in a job; default: the environment is that of here",
    )
    sbatch_args: list[str] | None = option(
        None, "slurm: more options for sbatch, for example account=nlp constraint=cpu"
    )

    def __post_init__(self) -> None:
        check_limits(self)
        for name, executors in _EXECUTORS_OF_SETTING.items():
            if getattr(self, name) is not None and self.executor not in executors:
                raise InputError(
                    f"{name} has no effect with executor {self.executor!r}: it is for "
                    f"{' or '.join(executors)}"
                )

        if self.executor == "slurm" and (self.partition is None or self.time is None):
            raise InputError("executor 'slurm' needs --partition and --time")

        for argument in self.sbatch_args or []:
            if "=" not in argument.strip("="):
                raise InputError(
                    f"sbatch_args has {argument!r}: name=value is allowed, without dashes"
                )

    @property
    def sbatch_options(self) -> dict[str, str]:
        """Return `sbatch_args` by name."""
        options = {}
        for argument in self.sbatch_args or []:
            name, value = argument.split("=", 1)
            options[name.lstrip("-")] = value
        return options

    def cores_of_a_task(self, workers: int) -> int:
        """Return how many processes a task may encode with."""
        if self.executor == "local":
            return max(1, count_cores() // workers)
        return self.cpus_per_task or 1


class LocalExecutor(LocalPipelineExecutor):
    """datatrove's executor for one machine, with processes that may be killed.

    The pool of datatrove 0.10.1 would wait for them for ever. Messages of a task stand in its log;
    the terminal has one progress bar for all.
    """

    def __init__(
        self,
        pipeline: Sequence[PipelineStep],
        *,
        tasks: int,
        workers: int,
        logging_dir: Path,
        name: str,
    ) -> None:
        workers = min(workers, tasks)
        super().__init__(
            list(pipeline),
            tasks=tasks,
            workers=workers,
            logging_dir=str(logging_dir),
            skip_completed=False,
        )
        self.name = name

    def run(self) -> PipelineStats:
        """Run all tasks; the first that fails ends the others."""
        self.save_executor_as_json()
        context = get_context(self.start_method)
        # The processes are copies of one that has imported the steps.
        context.set_forkserver_preload(sorted({type(step).__module__ for step in self.pipeline}))
        earlier_children = set(active_children())
        stats = PipelineStats()
        pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=follow_parent)

        try:
            running = [pool.submit(_run_task, self, rank) for rank in range(self.tasks)]
            for task in Progress(
                as_completed(running), total=self.tasks, unit="task", desc=self.name
            ):
                stats += task.result()
        except BaseException as error:
            # A task may have hours before it.
            for process in set(active_children()) - earlier_children:
                process.terminate()
            if not isinstance(error, BrokenProcessPool):
                raise
            raise InputError(
                f"{self.name}: one of the {self.workers} processes was killed, probably for lack "
                "of memory; set workers lower or free memory, and run again; logs: "
                f"{self.logging_dir.resolve_paths('logs')}"
            ) from error
        finally:
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
        raise InputError(
            f"{reason} ({executor.name}, task {rank}; log: {_log_of(executor, rank)})"
        ) from error


def _log_of(executor: PipelineExecutor, rank: int) -> str:
    return str(executor.logging_dir.resolve_paths(f"logs/task_{rank:05d}.log"))


@contextmanager
def messages_in_task_log() -> Iterator[None]:
    """Send this package's log to the log of the current task."""
    package = logging.getLogger("bert_recipes")
    level = package.level
    handler = _TaskLog()
    package.addHandler(handler)
    package.setLevel(logging.INFO)

    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)


class _TaskLog(logging.Handler):
    """A handler that writes to the log of the current task."""

    def emit(self, record: logging.LogRecord) -> None:
        task_log.log(record.levelname, record.getMessage())


def total(stats: PipelineStats, name: str) -> int:
    """Return what the pipeline's one step counted under a name."""
    value: Any = stats.stats[0].stats.get(name, 0)
    # As it was counted, or as it was read back.
    return int(value["total"] if isinstance(value, dict) else getattr(value, "total", value))


_KEPT = "shards_kept"
_NEW_BYTES = "text_bytes"


class _CorpusStep(PipelineStep):
    """A step over a preparation that was planned elsewhere."""

    type = "corpus"

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self.preparation = preparation
        # Paths are as they were given, and a cluster may start its processes in another folder.
        self.working_dir = os.getcwd()


class WriteShards(_CorpusStep):
    """A step that makes the shards `rank`, `rank + world_size`, ... that are not done."""

    name = "write shards"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Make them."""
        os.chdir(self.working_dir)
        with messages_in_task_log():
            self.preparation.check_plan()
            for number in range(rank, len(self.preparation.shards), world_size):
                new_bytes = self.preparation.write_shard(number)
                self.stat_update(_KEPT, value=int(new_bytes is None))
                self.stat_update(_NEW_BYTES, value=new_bytes or 0)


class JoinShards(_CorpusStep):
    """A step of one task that makes the store of all shards."""

    name = "join shards"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Join them."""
        os.chdir(self.working_dir)
        with messages_in_task_log(), self.preparation.claimed(takes_edits=False):
            self.preparation.join_shards()


def prepare_on_cluster(
    corpus: CorpusArguments, executors: ExecutorArguments, tokenizer: Any
) -> str:
    """Make the shards in tasks, and the store of them; by Slurm: submit both.

    The store is that of `prepare_store` with the same settings, byte for byte.
    """
    start = time.perf_counter()
    preparation = Preparation(corpus, tokenizer)
    num_shards = len(preparation.shards)
    if num_shards == 1 and corpus.dataset_name:
        raise InputError(
            f"dataset_name {corpus.dataset_name}: a data set of the Hub is one shard, which cannot "
            "be split: use recipes/prepare_corpus.py, or give its files with --files"
        )
    if num_shards == 1:
        raise InputError(
            "the corpus is one shard, which cannot be split: set shard_gigabytes "
            f"({corpus.shard_gigabytes}) lower, cut the text into more files, or use "
            "recipes/prepare_corpus.py"
        )

    # A task without a shard would only start and end.
    tasks = min(executors.tasks or num_shards, num_shards)
    workers = min(executors.workers or count_cores(), tasks)
    processes = corpus.num_processes or executors.cores_of_a_task(workers)
    preparation.arguments = replace(corpus, num_processes=processes)
    logs = Path(executors.logging_dir or f"{Path(corpus.output_dir)}.logs").absolute()
    with preparation.claimed():
        if executors.executor != "slurm":
            stats = _run_tasks(WriteShards(preparation), executors, tasks, workers, logs)
            report = PreparationReport(
                path=Path(corpus.output_dir),
                metadata=preparation.join_shards(),
                kept_shards=total(stats, _KEPT),
                new_bytes=total(stats, _NEW_BYTES),
                seconds=time.perf_counter() - start,
            )
            return f"{format_report(report)}\nlogs: {logs}"

    # The plan is written; the join, which may begin before we have ended, claims the folder for
    # itself.
    write = _slurm_jobs(WriteShards(preparation), executors, tasks, logs / "write", None)
    join = _slurm_jobs(JoinShards(preparation), executors, 1, logs / "join", write)
    _submit(join)
    return (
        f"submitted: job {write.job_id} with {tasks} tasks for {num_shards} shards, and job "
        f"{join.job_id}, which makes {corpus.output_dir} of them once all have ended well\n"
        f"logs: {logs}; if a task fails, the same command makes what is missing"
    )


def _run_tasks(
    step: PipelineStep, executors: ExecutorArguments, tasks: int, workers: int, logs: Path
) -> PipelineStats:
    if executors.executor == "ray":
        return _run_on_ray(step, executors, tasks, logs)
    executor = LocalExecutor([step], tasks=tasks, workers=workers, logging_dir=logs, name=step.name)
    return executor.run()


def _run_on_ray(
    step: PipelineStep, arguments: ExecutorArguments, tasks: int, logging_dir: Path
) -> PipelineStats:
    """Run tasks on a Ray cluster: that of `RAY_ADDRESS`, or one of this machine."""
    if find_spec("ray") is None:
        raise InputError("executor 'ray' needs Ray; pip install ray")

    executor = RayPipelineExecutor(
        [step],
        tasks=tasks,
        workers=min(arguments.workers or tasks, tasks),
        cpus_per_task=arguments.cpus_per_task or 1,
        mem_per_cpu_gb=arguments.mem_per_cpu_gb or 2,
        logging_dir=str(logging_dir),
        skip_completed=False,
    )
    # This executor does not report tasks that failed: completed ones are counted, without those of
    # an earlier run.
    if executor.logging_dir.isdir("completions"):
        executor.logging_dir.rm("completions", recursive=True)
    executor.run()
    failed = executor.get_incomplete_ranks(skip_completed=True)
    if failed:
        raise InputError(
            f"{step.name}: {len(failed)} of {tasks} tasks failed; log of the first: "
            f"{_log_of(executor, failed[0])}"
        )

    stats = PipelineStats()
    for rank in range(tasks):
        with executor.logging_dir.open(f"stats/{rank:05d}.json") as file:
            stats += PipelineStats.from_json(json.load(file))
    return stats


def _slurm_jobs(
    step: PipelineStep,
    arguments: ExecutorArguments,
    tasks: int,
    logging_dir: Path,
    depends: SlurmPipelineExecutor | None,
) -> SlurmPipelineExecutor:
    """Describe an array of jobs, one a task, that runs once `depends` has ended well.

    All nodes must see `logging_dir`.
    """
    return SlurmPipelineExecutor(
        [step],
        tasks=tasks,
        time=str(arguments.time),
        partition=str(arguments.partition),
        cpus_per_task=arguments.cpus_per_task or 1,
        mem_per_cpu_gb=arguments.mem_per_cpu_gb or 2,
        workers=-1 if arguments.workers is None else arguments.workers,
        job_name=step.name.replace(" ", "_"),
        qos=arguments.qos,
        env_command=arguments.env_command,
        # Otherwise a job whose tasks have failed would wait for them for ever.
        sbatch_args={"kill-on-invalid-dep": "yes", **arguments.sbatch_options},
        depends=depends,
        logging_dir=str(logging_dir.absolute()),
        skip_completed=False,
    )


def _submit(jobs: SlurmPipelineExecutor) -> None:
    """Hand jobs to Slurm, those that they depend on first."""
    if shutil.which("sbatch") is None or "SLURM_ARRAY_TASK_ID" in os.environ:
        raise InputError(
            "executor 'slurm' needs sbatch on the PATH and submits jobs, which a task of an array "
            "cannot: give the command on a login node"
        )

    try:
        jobs.run()
    except subprocess.CalledProcessError as error:
        raise InputError(
            f"sbatch refused the job (exit code {error.returncode}); its message is above"
        ) from error
