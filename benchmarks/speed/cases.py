"""The cases of the suites: which samples are compared, at which sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_recipes.models.sizes import SIZES
from speed.arguments import (
    ALL,
    BATCH_SIZE,
    MEGABYTES,
    OFF,
    SUITES,
    TASKS,
    VOCAB_SIZE,
    BenchmarkArguments,
)
from speed.lengths import LENGTHS_FILE, TASK_LIMITS, lengths_of_tasks
from speed.spec import OURS, STEPS, STOCK_BEST, STOCK_DEFAULTS, SampleSpec


# Tokens of a pre-training step.
TOKENS_PER_STEP = {size: 2048 if size in ("base", "large") else 4096 for size in SIZES}
# Of a pre-training sample, at most: the memory of base's step settles in about eight steps.
WARMUP_SECONDS = 10.0
DATA_MEASURES = ("store_1", "store_2", "apart", "pairs", "masks", "dropin_1", "dropin_10", "tokenizer")


@dataclass(frozen=True)
class Case:
    """Samples that belong together.

    Attributes:
        suite, name: What it is called in the results.
        samples: Side -> its sample.
        rate: Figure of a sample that is compared, larger is better.
        searched: Switches of stock at its best, in the order of the search; empty: none.
        start: Switch -> value that the search begins with.
        matmul: Sample that measures the machine's rate; None where no model is trained.
    """

    suite: str
    name: str
    samples: Mapping[str, SampleSpec]
    rate: str = "tokens_per_second"
    searched: tuple[str, ...] = ()
    start: Mapping[str, Any] = field(default_factory=dict)
    matmul: SampleSpec | None = None


def list_cases(args: BenchmarkArguments, configs: Path, work_dir: Path) -> list[Case]:
    """The cases that the settings ask for.

    Args:
        args: Settings.
        configs: recipes/configs.
        work_dir: Folder that the samples share.
    """
    builders = {
        "pretraining": pretraining_cases,
        "finetuning": finetuning_cases,
        "steps": steps_cases,
        "inference": inference_cases,
        "data": data_cases,
        "time_to_quality": quality_cases,
    }
    chosen = SUITES if args.suite == ALL else (args.suite,)
    return [case for suite in chosen for case in builders[suite](args, configs, work_dir)]


def _base(args: BenchmarkArguments, kind: str, work_dir: Path, **values: Any) -> SampleSpec:
    common = {"vocab_size": args.vocab_size, "use_cpu": args.use_cpu, "budget_seconds": args.budget_seconds}
    return SampleSpec(kind=kind, work_dir=str(work_dir), **(common | values))


def _switches(args: BenchmarkArguments, on_gpu: bool) -> tuple[str, ...]:
    """Switches in the order of the search: what steadies the others first, compiling last as it takes longest."""
    # Without it a CPU spends most of a small model's step on page faults, whatever else is chosen.
    first = () if on_gpu else ("glibc",)
    return (*first, "precision", "attn", "padding", "order", "optim", *(("workers",) if on_gpu else ()), "compile")


def _sides(args: BenchmarkArguments, spec: SampleSpec) -> dict[str, SampleSpec]:
    """Without a search nothing says what stock's best is: there is no such side."""
    sides = (STOCK_DEFAULTS, OURS) if args.search == OFF else (STOCK_DEFAULTS, STOCK_BEST, OURS)
    return {side: replace(spec, side=side) for side in sides}


def _name(args: BenchmarkArguments, *parts: str) -> str:
    """A case's name with what is not the default of its work: cases of other work do not meet in the results."""
    vocab = () if args.vocab_size == VOCAB_SIZE else (f"vocab{args.vocab_size}",)
    return "-".join([*(part for part in parts if part), *vocab])


def pretraining_cases(args: BenchmarkArguments, configs: Path, work_dir: Path) -> list[Case]:
    """Size x length; alone: tiny and mini at 128."""
    from speed.stock_switches import stock_defaults

    is_all = args.suite == ALL
    sizes: Sequence[str] = args.sizes or (tuple(SIZES) if is_all else ("tiny", "mini"))
    lengths: Sequence[int] = args.lengths or ((128, 512) if is_all else (128,))
    cases = []
    for size in sizes:
        for length in lengths:
            tokens = args.tokens_per_step or TOKENS_PER_STEP[size]
            name = _name(
                args,
                f"{size}-{length}",
                "" if args.documents == "long" else args.documents,
                "store" if args.store else "",
                "" if tokens == TOKENS_PER_STEP[size] else f"{tokens}tokens",
            )
            spec = _base(
                args,
                "pretraining",
                work_dir,
                config=str(configs / "pretrain" / f"bert_{size}.yaml"),
                size=size,
                length=length,
                tokens_per_step=tokens,
                documents=args.documents,
                store=args.store,
                warmup_seconds=min(WARMUP_SECONDS, args.budget_seconds),
            )
            matmul = replace(spec, kind="matmul", what="pretraining", config="", store=None)
            searched = _switches(args, _on_gpu(args))
            start = stock_defaults()
            cases.append(Case("pretraining", name, _sides(args, spec), searched=searched, start=start, matmul=matmul))
    return cases


def finetuning_cases(args: BenchmarkArguments, configs: Path, work_dir: Path) -> list[Case]:
    """Task x size; alone: SST-2 at the shape of base."""
    from speed.stock_switches import stock_defaults

    tasks: Sequence[str] = args.tasks or (TASKS if args.suite == ALL else ("sst2",))
    lengths = lengths_of_tasks(args, LENGTHS_FILE)
    cases = []
    for task in tasks:
        limit = TASK_LIMITS[task]
        for size in args.sizes or ("base",):
            spec = _base(
                args,
                "finetuning",
                work_dir,
                config=str(configs / "finetune" / f"{limit.config}.yaml"),
                size=size,
                length=limit.max_length,
                task=task,
                lengths=lengths[task],
                batch_size=args.batch_size,
                warmup_steps=1,
                max_steps=_pass_steps(args, task, size),
            )
            sides = _sides(args, spec)
            # Batches of like length come in any order: all of them are measured, or the mean is not that of the task. They are
            # measured in the second epoch: products are prepared once for each of their shapes.
            sides[OURS] = replace(sides[OURS], whole_pass=True, warmup_steps=sides[OURS].max_steps)
            tokens = args.batch_size * limit.max_length
            matmul = replace(spec, kind="matmul", what="finetuning", config="", tokens_per_step=tokens, lengths=())
            start = stock_defaults(limit.stock_padding)
            searched = _switches(args, _on_gpu(args))
            batch = "" if args.batch_size == BATCH_SIZE else f"batch{args.batch_size}"
            name = _name(args, f"{task}-{size}", batch, "own_lengths" if args.data_dir else "")
            cases.append(Case("finetuning", name, sides, "examples_per_second", searched, start, matmul))
    return cases


def _pass_steps(args: BenchmarkArguments, task: str, size: str) -> int:
    """Steps of a pass: fifty batches are what both samplers of like lengths sort at a time; fewer where they are slow."""
    is_slow = size in ("base", "large") and not _on_gpu(args)
    steps = {"sst2": 24, "mnli": 16, "squad": 8, "conll2003": 24}[task] if is_slow else 50
    return steps if args.budget_seconds >= 2 else 4


def steps_cases(args: BenchmarkArguments, configs: Path, work_dir: Path) -> list[Case]:
    """Ours step by step beside stock's defaults: what each of them gives."""
    cases = []
    for case in pretraining_cases(args, configs, work_dir):
        sides = {STOCK_DEFAULTS: case.samples[STOCK_DEFAULTS]}
        for side, (_, switches) in STEPS.items():
            sides[side] = replace(case.samples[OURS], side=side, switches=switches)
        cases.append(Case("steps", case.name, sides))
    return cases


def inference_cases(args: BenchmarkArguments, configs: Path, work_dir: Path) -> list[Case]:
    """Precision x size, lengths of SST-2; stock padded to the batch in the order of the rows."""
    lengths = lengths_of_tasks(args, LENGTHS_FILE)["sst2"]
    cases = []
    for size in args.sizes or ("base",):
        for precision in ("fp32", "bf16"):
            spec = _base(
                args,
                "inference",
                work_dir,
                config=str(configs / "finetune" / "glue.yaml"),
                size=size,
                task="sst2",
                lengths=lengths,
                precision=precision,
                batch_size=64,
            )
            sides = {side: replace(spec, side=side) for side in (STOCK_DEFAULTS, OURS)}
            name = _name(args, f"sst2-{size}-{precision}", "own_lengths" if args.data_dir else "")
            cases.append(Case("inference", name, sides, "examples_per_second"))
    return cases


def data_cases(args: BenchmarkArguments, configs: Path, work_dir: Path) -> list[Case]:
    """One case a measure; ours alone."""
    files = tuple(args.files or ())
    amount = "files" if files else "" if args.megabytes == MEGABYTES else f"{args.megabytes:g}mb"
    return [
        Case(
            "data",
            _name(args, what, amount),
            {OURS: _base(args, "data", work_dir, side=OURS, what=what, megabytes=args.megabytes, files=files)},
            "per_second",
        )
        for what in DATA_MEASURES
    ]


def quality_cases(args: BenchmarkArguments, configs: Path, work_dir: Path) -> list[Case]:
    """Ours and stock for some minutes from raw text."""
    spec = _base(
        args,
        "quality",
        work_dir,
        config=str(configs / "pretrain" / "quickstart.yaml"),
        size=(args.sizes or ["tiny"])[0],
        minutes=args.minutes,
        files=tuple(args.files or ()),
    )
    sides = {side: replace(spec, side=side) for side in (OURS, STOCK_BEST)}
    name = _name(args, f"{spec.size}-{args.minutes:g}min", "files" if args.files else "")
    return [Case("time_to_quality", name, sides, "mlm_loss")]


def _on_gpu(args: BenchmarkArguments) -> bool:
    import torch

    return torch.cuda.is_available() and not args.use_cpu
