"""The shards of a corpus made by tasks on one machine or many: what ``recipes/prepare_on_cluster.py`` does.

The plan is written before the tasks begin; each sees that its machine has the same files, settings and versions, makes the shards
of its rank that are not done, and nothing else. The store is joined when all have ended well, by one process.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from bert_recipes.data.corpus_arguments import CorpusArguments, count_cores
from bert_recipes.data.executor_arguments import ExecutorArguments
from bert_recipes.data.executors import LocalExecutor, messages_in_task_log, run_on_ray, slurm_jobs, submit, total
from bert_recipes.data.preparation import CorpusTokenizer, Preparation
from bert_recipes.data.preparation_report import PreparationReport, format_report
from bert_recipes.errors import InputError


_KEPT, _NEW_BYTES = "shards_kept", "text_bytes"


class _CorpusStep(PipelineStep):
    """A step over a preparation that was planned elsewhere.

    Args:
        preparation: The same in all tasks.
    """

    type = "corpus"

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self.preparation = preparation
        # Paths are as they were given, and a cluster may start its processes in another folder.
        self.working_dir = os.getcwd()


class WriteShards(_CorpusStep):
    """Makes the shards ``rank``, ``rank + world_size``, ..."""

    name = "write shards"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Make those that are not done.

        Raises:
            InputError: For whatever is wrong with the text, or with this machine: other files, other versions.
        """
        os.chdir(self.working_dir)
        preparation = self.preparation
        with messages_in_task_log():
            preparation.folder.check_plan(preparation.plan(), is_begun=True)
            for shard in preparation.shards[rank::world_size]:
                report = PreparationReport(path=preparation.folder.place(shard))
                preparation.write_shard(shard, report)
                self.stat_update(_KEPT, value=report.kept_shards)
                self.stat_update(_NEW_BYTES, value=report.new_bytes)


class JoinShards(_CorpusStep):
    """Makes the store of all shards; one task."""

    name = "join shards"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Join them.

        Raises:
            InputError: A shard is missing, another process is at it, or a split has fewer than two documents.
        """
        os.chdir(self.working_dir)
        preparation = self.preparation
        with messages_in_task_log(), preparation.folder.claimed(preparation.plan()):
            preparation.join_shards(PreparationReport(path=preparation.folder.target))


def prepare_on_cluster(corpus: CorpusArguments, executors: ExecutorArguments, tokenizer: CorpusTokenizer) -> str:
    """Make the shards in tasks, and the store of them; by Slurm: submit both.

    The store is that of `prepare_store` with the same settings, byte for byte.

    Returns:
        What was done, for the user.

    Raises:
        InputError: The corpus is one shard, another process prepares it, a task failed, or what `prepare_store` raises.
    """
    preparation = Preparation(corpus, tokenizer)
    num_shards = len(preparation.shards)
    if num_shards == 1:
        raise InputError(
            f"the corpus is one shard, which cannot be shared out: set shard_gigabytes ({corpus.shard_gigabytes}) lower, cut the "
            "text into more files, or use recipes/prepare_corpus.py"
        )
    # A task without a shard would only start and end.
    tasks = min(executors.tasks or num_shards, num_shards)
    workers = min(executors.workers or count_cores(), tasks)
    processes = corpus.num_processes or executors.cores_of_a_task(workers)
    preparation.arguments = replace(corpus, num_processes=processes)
    logs = Path(executors.logging_dir or f"{Path(corpus.output_dir)}.logs").absolute()
    with preparation.folder.claimed(preparation.plan()):
        if executors.executor != "slurm":
            return _run(preparation, executors, tasks, workers, logs)
    # The plan is written; the join, which may begin before we have ended, claims the folder for itself.
    return _submit(preparation, executors, tasks, logs)


def _run(preparation: Preparation, executors: ExecutorArguments, tasks: int, workers: int, logs: Path) -> str:
    """Wait for the tasks, then join; the caller has claimed the folder."""
    started = time.perf_counter()
    steps, name = [WriteShards(preparation)], "write shards"
    if executors.executor == "ray":
        stats = run_on_ray(steps, executors, tasks=tasks, logging_dir=logs, name=name)
    else:
        stats = LocalExecutor(steps, tasks=tasks, workers=workers, logging_dir=logs, name=name).run()
    report = PreparationReport(path=Path(preparation.arguments.output_dir), num_shards=len(preparation.shards))
    report.kept_shards, report.new_bytes = total(stats, 0, _KEPT), total(stats, 0, _NEW_BYTES)
    preparation.join_shards(report)
    report.measure(time.perf_counter() - started, has_workers=False)
    return f"{format_report(report)}\nlogs: {logs}"


def _submit(preparation: Preparation, executors: ExecutorArguments, tasks: int, logs: Path) -> str:
    """Submit the tasks, and the join that waits for them."""
    write = slurm_jobs(
        [WriteShards(preparation)], executors, tasks=tasks, logging_dir=logs / "write", name="write_shards"
    )
    join = slurm_jobs(
        [JoinShards(preparation)], executors, tasks=1, logging_dir=logs / "join", name="join_shards", depends=write
    )
    submit(join)
    return (
        f"submitted: job {write.job_id} with {tasks} tasks for {len(preparation.shards)} shards, and job {join.job_id}, which makes "
        f"{preparation.arguments.output_dir} of them once all have ended well\n"
        f"logs: {logs}; if a task fails, the same command makes what is missing"
    )
