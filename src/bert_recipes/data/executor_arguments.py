"""Where the tasks of a preparation run, as settings; knows nothing of datatrove, which may be missing."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

from bert_recipes.data.corpus_arguments import count_cores
from bert_recipes.errors import InputError


# What is said to a scheduler only.
_SLURM_ONLY = ("partition", "time", "qos", "env_command", "sbatch_args")
_CLUSTER_ONLY = ("cpus_per_task", "mem_per_cpu_gb")


def check_task_counts(tasks: int | None, workers: int | None) -> None:
    """Refuse less than one."""
    for name, number in (("tasks", tasks), ("workers", workers)):
        if number is not None and number < 1:
            raise InputError(f"{name} is {number}: 1 or more is allowed")


def require_datatrove(packages: tuple[str, ...] = ("datatrove",)) -> None:
    """See that what runs the tasks is installed.

    Args:
        packages: What is needed of the extra ``cluster``.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} not installed; pip install 'bert-recipes[cluster]'")


@dataclass(kw_only=True)
class ExecutorArguments:
    """Who runs the tasks: processes of this machine, Slurm or Ray."""

    executor: Literal["local", "slurm", "ray"] = field(
        default="local", metadata={"help": "processes of this machine, jobs of Slurm, or a Ray cluster"}
    )
    tasks: int | None = field(
        default=None, metadata={"help": "how many the shards are dealt out to; default: one a shard"}
    )
    workers: int | None = field(
        default=None, metadata={"help": "tasks at the same time; default: all cores (local), no limit (slurm, ray)"}
    )
    logging_dir: str | None = field(
        default=None, metadata={"help": "logs of the tasks; default: output_dir with .logs behind it"}
    )
    cpus_per_task: int | None = field(
        default=None, metadata={"help": "slurm, ray: cores of a task, which encode if num_processes is not given; 1"}
    )
    mem_per_cpu_gb: int | None = field(default=None, metadata={"help": "slurm, ray: memory for each core; 2"})
    partition: str | None = field(default=None, metadata={"help": "slurm: partition"})
    time: str | None = field(default=None, metadata={"help": "slurm: time limit of a task, for example 04:00:00"})
    qos: str | None = field(default=None, metadata={"help": "slurm: quality of service"})
    env_command: str | None = field(
        default=None,
        metadata={"help": "slurm: shell command that comes first in a job; default: the environment is that of here"},
    )
    sbatch_args: list[str] | None = field(
        default=None, metadata={"help": "slurm: more options for sbatch, for example account=nlp constraint=cpu"}
    )

    def __post_init__(self) -> None:
        check_task_counts(self.tasks, self.workers)
        unused = {"local": (*_CLUSTER_ONLY, *_SLURM_ONLY), "ray": _SLURM_ONLY, "slurm": ()}[self.executor]
        for name in unused:
            if getattr(self, name) is not None:
                allowed = "slurm or ray" if name in _CLUSTER_ONLY else "slurm"
                raise InputError(f"{name} has no effect with executor {self.executor!r}: it is for {allowed}")
        for name in _CLUSTER_ONLY:
            number = getattr(self, name)
            if number is not None and number < 1:
                raise InputError(f"{name} is {number}: 1 or more is allowed")
        missing = [name for name in ("partition", "time") if self.executor == "slurm" and getattr(self, name) is None]
        if missing:
            raise InputError(f"executor 'slurm' needs {' and '.join(missing)}: give --{' and --'.join(missing)}")
        for option in self.sbatch_args or []:
            if "=" not in option.strip("="):
                raise InputError(f"sbatch_args has {option!r}: name=value is allowed, without dashes")

    @property
    def sbatch_options(self) -> dict[str, str]:
        """``sbatch_args`` by name."""
        pairs = (option.split("=", 1) for option in self.sbatch_args or [])
        return {name.lstrip("-"): value for name, value in pairs}

    def cores_of_a_task(self, workers: int) -> int:
        """How many processes a task may encode with.

        Args:
            workers: Tasks at the same time on this machine.
        """
        return max(1, count_cores() // workers) if self.executor == "local" else self.cpus_per_task or 1
