"""The settings of benchmarks/benchmark.py."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from bert_recipes.errors import InputError
from bert_recipes.models.sizes import SIZES
from speed.synthetic import DOCUMENTS


SUITES = ("pretraining", "finetuning", "steps", "data", "inference", "time_to_quality")
ALL = "all"
TASKS = ("sst2", "mnli", "squad", "conll2003")
LENGTH_RANGE = (16, 512)
REUSE, ANEW, ONLY, OFF = "reuse", "again", "only", "off"
# Defaults that a case's name need not tell.
VOCAB_SIZE, BATCH_SIZE, MEGABYTES = 30_522, 32, 16.0


@dataclass
class BenchmarkArguments:
    """What is measured, how long, and where the results go."""

    suite: str = field(default="pretraining", metadata={"help": f"one of {', '.join(SUITES)}, {ALL}"})
    sizes: list[str] | None = field(default=None, metadata={"help": f"of {', '.join(SIZES)}; default: by suite"})
    lengths: list[int] | None = field(default=None, metadata={"help": "tokens of an input; default: 128"})
    tasks: list[str] | None = field(default=None, metadata={"help": f"of {', '.join(TASKS)}; default: by suite"})
    documents: str = field(default="long", metadata={"help": f"generated documents: {' or '.join(DOCUMENTS)}"})
    rounds: int = field(default=3, metadata={"help": "samples of each side, which take turns"})
    budget_seconds: float = field(default=10.0, metadata={"help": "measured seconds of a sample, at least 3 steps"})
    time_limit_minutes: float = field(default=7.5, metadata={"help": "of a suite; with all: of each case"})
    output_dir: str = field(default="runs/benchmark", metadata={"help": "folder of the results, table and plot"})
    data_dir: str | None = field(default=None, metadata={"help": "task data: measure its lengths; default: committed"})
    store: str | None = field(default=None, metadata={"help": "token-id store to train on; default: generated ids"})
    files: list[str] | None = field(default=None, metadata={"help": "text of data and time_to_quality; default: made"})
    minutes: float = field(default=20.0, metadata={"help": "time_to_quality: wall clock of each side"})
    megabytes: float = field(default=MEGABYTES, metadata={"help": "data: size of the generated text"})
    tokens_per_step: int | None = field(
        default=None, metadata={"help": "pretraining; default: 4096, base and large 2048"}
    )
    batch_size: int = field(default=BATCH_SIZE, metadata={"help": "finetuning: examples of a step"})
    vocab_size: int = field(default=VOCAB_SIZE, metadata={"help": "entries of the generated vocabulary"})
    threads: int | None = field(default=None, metadata={"help": "threads of a sample; default: as the machine has it"})
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})
    search: str = field(
        default=REUSE,
        metadata={"help": "stock at its best: reuse the last search, again, only (no samples), or off (left out)"},
    )
    resume: bool | None = field(default=None, metadata={"help": "keep finished samples; default: with all only"})
    measure_lengths: bool = field(
        default=False,
        metadata={"help": "only measure the tasks' lengths in --data_dir with --tokenizer and write them"},
    )
    tokenizer: str | None = field(default=None, metadata={"help": "vocab.txt or tokenizer folder for --data_dir"})
    report_only: bool = field(default=False, metadata={"help": "measure nothing; remake the table and the plot"})

    def __post_init__(self) -> None:
        check_names("suite", [self.suite], (*SUITES, ALL))
        check_names("sizes", self.sizes or [], tuple(SIZES))
        check_names("tasks", self.tasks or [], TASKS)
        check_names("documents", [self.documents], tuple(DOCUMENTS))
        check_names("search", [self.search], (REUSE, ANEW, ONLY, OFF))
        if self.search == ONLY and self.suite not in ("pretraining", "finetuning", ALL):
            raise InputError(
                f"search is 'only': nothing is searched for {self.suite}; allowed: pretraining, finetuning, all"
            )
        low, high = LENGTH_RANGE
        for length in self.lengths or []:
            if not low <= length <= high:
                raise InputError(f"lengths: {length} is given; allowed: {low} to {high}")
        for name in ("rounds", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: 1 or more")
        for name in ("budget_seconds", "time_limit_minutes", "minutes", "megabytes"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: above 0")
        for name in ("threads", "tokens_per_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; allowed: 1 or more, or nothing for the default")
        if self.measure_lengths and not (self.data_dir and self.tokenizer):
            raise InputError("measure_lengths needs --data_dir DATA and --tokenizer vocab.txt")
        if self.data_dir and not self.tokenizer:
            raise InputError("--data_dir is given: its lengths are measured with a vocabulary, give --tokenizer too")


def check_names(field_name: str, given: Iterable[str], allowed: tuple[str, ...]) -> None:
    """Refuse a name that is not allowed, and give the nearest one."""
    for name in given:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)
            raise InputError(f"{field_name} is '{name}'; did you mean '{near[0]}'? allowed: {', '.join(allowed)}")
