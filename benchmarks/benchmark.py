"""Ours and stock transformers side by side: speed, memory, time to a quality.

    python benchmarks/benchmark.py --suite pretraining --sizes tiny mini --lengths 128

Suites: pretraining, finetuning, steps, inference, data, time_to_quality, or all, which resumes. The
sides take turns; those of stock are listed in benchmarks/stock.yaml. Every sample is added to the
machine's results file in --output_dir, from which benchmarks.md and the plots are made.
docs/benchmarks.md says how everything is measured.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generated import DOCUMENTS
from lengths import LENGTHS_FILE, TASK_LIMITS, measure_lengths, read_lengths, write_lengths
from report import TABLE_FILE, write_report
from side_by_side import (
    BUDGET,
    OURS,
    STEPS,
    STOCK_DEFAULTS,
    Sample,
    add_result,
    fastest_stock,
    is_stock,
    last_runs,
    machine_name,
    read_results,
    run_sample,
    same_machine,
)

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.models.sizes import SIZES
from bert_recipes.settings import check, option
from bert_recipes.training.speed import describe_machine


CONFIGS = Path(__file__).resolve().parents[1] / "recipes" / "configs"
SUITES = ("pretraining", "finetuning", "steps", "data", "inference", "time_to_quality")
DATA_MEASURES = (
    *(
        "store_1",
        "store_2",
        "apart",
        "pairs",
        "masks",
        "worker_bert",
        "worker_roberta",
        "worker_albert",
        "worker_electra",
    ),
    *("dropin_1", "dropin_10", "tokenizer"),
)
# Defaults that a case's name need not tell.
VOCAB_SIZE, BATCH_SIZE, MEGABYTES = 30_522, 32, 16.0
# Of a pre-training sample, at most: the memory of base's step settles in about eight steps.
WARMUP_SECONDS = 10.0
# Steps of a pass of base and large on a CPU; 50 elsewhere: fifty batches are what both sides sort
# by length at a time.
SLOW_PASS = {"sst2": 24, "mnli": 16, "squad": 8, "conll2003": 24}
logger = logging.getLogger("benchmark")


@dataclass
class BenchmarkArguments:
    """What is measured, how long, and where the results go."""

    suite: str = option("pretraining", "what is measured", choices=(*SUITES, "all"))
    sizes: list[str] | None = option(None, "default: by suite", choices=tuple(SIZES))
    lengths: list[int] | None = option(None, "tokens of an input; default: 128", least=16, most=512)
    tasks: list[str] | None = option(None, "default: by suite", choices=tuple(TASK_LIMITS))
    documents: str = option("long", "generated documents", choices=tuple(DOCUMENTS))
    rounds: int = option(3, "samples of each side, which take turns", least=1)
    budget_seconds: float = option(10.0, "measured seconds of a sample, at least 3 steps", above=0)
    time_limit_minutes: float = option(7.5, "of a suite; with all: of each case", above=0)
    output_dir: str = option("runs/benchmark", "folder of the results, table and plot")
    data_dir: str | None = option(None, "task data: measure its lengths; default: committed")
    store: str | None = option(None, "token-id store to train on; default: generated ids")
    files: list[str] | None = option(None, "text of data and time_to_quality; default: made")
    minutes: float = option(20.0, "time_to_quality: wall clock of each side", above=0)
    megabytes: float = option(MEGABYTES, "data: size of the generated text", above=0)
    tokens_per_step: int | None = option(
        None, "pretraining; default: 4096, base and large 2048", least=1
    )
    batch_size: int = option(BATCH_SIZE, "finetuning: examples of a step", least=1)
    vocab_size: int = option(VOCAB_SIZE, "entries of the generated vocabulary")
    threads: int | None = option(
        None, "threads of a sample; default: as the machine has it", least=1
    )
    use_cpu: bool = option(False, "use the CPU even where there is a GPU")
    resume: bool | None = option(None, "keep finished samples; default: with all only")
    measure_lengths: bool = option(
        False, "only measure the tasks' lengths in --data_dir with --tokenizer and write them"
    )
    tokenizer: str | None = option(None, "vocab.txt or tokenizer folder for --data_dir")
    report_only: bool = option(False, "measure nothing; remake the table and the plot")

    def __post_init__(self) -> None:
        check(self)
        if self.measure_lengths and not (self.data_dir and self.tokenizer):
            raise InputError("measure_lengths needs --data_dir DATA and --tokenizer vocab.txt")
        if self.data_dir and not self.tokenizer:
            raise InputError(
                "--data_dir is given: its lengths are measured with a vocabulary, give "
                "--tokenizer too"
            )


@dataclass(frozen=True)
class Case:
    """Samples that belong together."""

    suite: str
    name: str
    samples: Mapping[str, Sample]  # by side, in the order of a round
    rate: str = "tokens_per_second"
    matmul: Sample | None = None  # the machine's rate of matrix products, where a model is trained


class Cases:
    """The cases that the settings ask for."""

    def __init__(self, args: BenchmarkArguments, work_dir: Path) -> None:
        # Imported only now, for it takes seconds.
        from sides import on_cpu, stock_configurations

        self.args = args
        self.is_all = args.suite == "all"
        self.base = Sample(
            kind="",
            work_dir=str(work_dir),
            vocab_size=args.vocab_size,
            use_cpu=args.use_cpu,
            budget_seconds=args.budget_seconds,
        )
        self.on_cpu = on_cpu(self.base)
        self.stock = stock_configurations("cpu" if self.on_cpu else "gpu")

    def chosen(self) -> list[Case]:
        """Return the cases of the suite, or of all suites."""
        chosen = SUITES if self.is_all else (self.args.suite,)
        return [case for suite in chosen for case in getattr(self, suite)()]

    def _name(self, *parts: str) -> str:
        """Name a case with what is not the default of its work: cases of other work do not meet in
        the results.
        """
        vocab = "" if self.args.vocab_size == VOCAB_SIZE else f"vocab{self.args.vocab_size}"
        return "-".join(filter(None, (*parts, vocab)))

    def _sides(self, sample: Sample) -> dict[str, Sample]:
        sides = {
            side: replace(sample, side=side, switches=switches)
            for side, switches in self.stock.items()
        }
        return sides | {OURS: replace(sample, side=OURS)}

    def pretraining(self) -> list[Case]:
        """Size x length; alone: tiny and mini at 128."""
        args, cases = self.args, []
        sizes: Sequence[str] = args.sizes or (tuple(SIZES) if self.is_all else ("tiny", "mini"))
        for size in sizes:
            default_tokens = 2048 if size in ("base", "large") else 4096
            if not self.on_cpu:  # what fills a GPU; stock's defaults hold all logits in float32
                default_tokens *= 8 if size == "large" else 16
            tokens = args.tokens_per_step or default_tokens
            for length in args.lengths or ((128, 512) if self.is_all else (128,)):
                documents = "" if args.documents == "long" else args.documents
                other = "" if tokens == default_tokens else f"{tokens}tokens"
                name = self._name(
                    f"{size}-{length}", documents, "store" if args.store else "", other
                )
                sample = replace(
                    self.base,
                    kind="pretraining",
                    config=str(CONFIGS / "pretrain" / f"bert_{size}.yaml"),
                    size=size,
                    length=length,
                    tokens_per_step=tokens,
                    documents=args.documents,
                    store=args.store,
                    warmup_seconds=min(WARMUP_SECONDS, args.budget_seconds),
                )
                matmul = replace(sample, kind="matmul", what="pretraining", config="", store=None)
                cases.append(Case("pretraining", name, self._sides(sample), matmul=matmul))
        return cases

    def steps(self) -> list[Case]:
        """Ours step by step beside stock's defaults: what each of them gives."""
        cases = []
        for case in self.pretraining():
            sides = {STOCK_DEFAULTS: case.samples[STOCK_DEFAULTS]}
            for side, (_, switches) in STEPS.items():
                sides[side] = replace(case.samples[OURS], side=side, switches=switches)
            cases.append(Case("steps", case.name, sides))
        return cases

    def _lengths(self, task: str) -> tuple[int, ...]:
        if self.args.data_dir and self.args.tokenizer:
            return measure_lengths(task, self.args.data_dir, self.args.tokenizer)
        return read_lengths()[task]

    def finetuning(self) -> list[Case]:
        """Task x size; alone: SST-2 at the shape of base."""
        args, cases = self.args, []
        for task in args.tasks or (TASK_LIMITS if self.is_all else ("sst2",)):
            limit, lengths = TASK_LIMITS[task], self._lengths(task)
            for size in args.sizes or ("base",):
                steps = SLOW_PASS[task] if size in ("base", "large") and self.on_cpu else 50
                sample = replace(
                    self.base,
                    kind="finetuning",
                    config=str(CONFIGS / "finetune" / f"{limit.config}.yaml"),
                    size=size,
                    length=limit.max_length,
                    task=task,
                    lengths=lengths,
                    batch_size=args.batch_size,
                    warmup_steps=1,
                    max_steps=steps if args.budget_seconds >= 2 else 4,
                )
                sides = self._sides(sample)
                for side, own in sides.items():
                    # Batches of like length come in any order: all of them are measured, or the
                    # mean is not that of the task. They are
                    # measured in the second epoch: products are prepared once for each of their
                    # shapes.
                    if (
                        side == OURS
                        or own.switches.get("train_sampling_strategy") == "group_by_length"
                    ):
                        sides[side] = replace(own, whole_pass=True, warmup_steps=own.max_steps)
                tokens = args.batch_size * limit.max_length
                matmul = replace(
                    sample,
                    kind="matmul",
                    what="finetuning",
                    config="",
                    tokens_per_step=tokens,
                    lengths=(),
                )
                batch = "" if args.batch_size == BATCH_SIZE else f"batch{args.batch_size}"
                name = self._name(f"{task}-{size}", batch, "own_lengths" if args.data_dir else "")
                cases.append(Case("finetuning", name, sides, "examples_per_second", matmul))
        return cases

    def inference(self) -> list[Case]:
        """Precision x size, lengths of SST-2; stock padded to the batch in the order of the
        rows.
        """
        cases, lengths = [], self._lengths("sst2")
        config, own = (
            str(CONFIGS / "finetune" / "glue.yaml"),
            "own_lengths" if self.args.data_dir else "",
        )
        for size in self.args.sizes or ("base",):
            base = replace(
                self.base, kind="inference", config=config, size=size, task="sst2", lengths=lengths
            )
            for precision in ("fp32", "bf16"):
                sample = replace(base, precision=precision, batch_size=64)
                sides = {side: replace(sample, side=side) for side in (STOCK_DEFAULTS, OURS)}
                name = self._name(f"sst2-{size}-{precision}", own)
                cases.append(Case("inference", name, sides, "examples_per_second"))
        return cases

    def data(self) -> list[Case]:
        """One case a measure; ours alone."""
        megabytes, files = self.args.megabytes, tuple(self.args.files or ())
        amount = "files" if files else "" if megabytes == MEGABYTES else f"{megabytes:g}mb"
        sample = replace(self.base, kind="data", side=OURS, megabytes=megabytes, files=files)
        return [
            Case("data", self._name(what, amount), {OURS: replace(sample, what=what)}, "per_second")
            for what in DATA_MEASURES
        ]

    def time_to_quality(self) -> list[Case]:
        """The quickstart's settings, the same with the paper's optimiser, and stock, for some
        minutes from raw text.
        """
        size, minutes, files = (
            (self.args.sizes or ["tiny"])[0],
            self.args.minutes,
            tuple(self.args.files or ()),
        )
        config = str(CONFIGS / "pretrain" / "quickstart.yaml")
        sample = replace(
            self.base, kind="quality", config=config, size=size, minutes=minutes, files=files
        )
        name = self._name(f"{size}-{minutes:g}min", "files" if files else "")
        sides = {side: replace(sample, side=side) for side in (BUDGET, OURS, STOCK_DEFAULTS)}
        return [Case("time_to_quality", name, sides, "mlm_loss")]

    def best_for_quality(self, case: Case, known: Iterable[Mapping[str, Any]]) -> Case:
        """Give stock the configuration that was the fastest for its size in pre-training at 128
        tokens on this machine, if one was.
        """
        size = case.samples[OURS].size
        best = fastest_stock(last_runs(known).get(("pretraining", f"{size}-128"), []))
        if best is None or best not in self.stock:
            logger.info(
                "  stock with its defaults: no fastest configuration for %s-128 on this machine "
                "is known",
                size,
            )
            return case
        stock = replace(case.samples[STOCK_DEFAULTS], side=best, switches=self.stock[best])
        return replace(
            case, samples={BUDGET: case.samples[BUDGET], OURS: case.samples[OURS], best: stock}
        )


class SuiteRun:
    """Runs cases one after the other within the time limit; every sample becomes a record."""

    def __init__(self, args: BenchmarkArguments, machine: Mapping[str, Any]) -> None:
        self.args, self.machine = args, machine
        self.file = Path(args.output_dir).resolve() / f"{machine_name(machine)}.json"
        self.known = [
            r
            for r in read_results(self.file)
            if r.get("machine") and same_machine(r["machine"], machine)
        ]

    def run(self, cases: Cases) -> None:
        """Run everything that is not there yet."""
        is_all, limit = self.args.suite == "all", self.args.time_limit_minutes * 60
        resume, end, chosen = self.args.resume, time.monotonic() + limit, cases.chosen()
        for number, case in enumerate(chosen):
            left = end - time.monotonic()
            if number and not is_all and left <= 0:
                names = ", ".join(each.name for each in chosen[number:])
                shown = self.args.time_limit_minutes
                logger.warning(
                    "no time for %s; give more, or fewer cases: --time_limit_minutes is %g",
                    names,
                    shown,
                )
                return
            logger.info("case %d of %d: %s %s", number + 1, len(chosen), case.suite, case.name)
            if case.suite == "time_to_quality":
                case = cases.best_for_quality(case, self.known)
            earlier = last_runs(self.known).get((case.suite, case.name), [])
            is_resumed = bool(earlier) and (is_all if resume is None else resume)
            share = limit if is_all else max(left, 0.0) / (len(chosen) - number)
            self.run_case(case, earlier if is_resumed else [], time.monotonic() + share)

    def run_case(self, case: Case, earlier: Sequence[Mapping[str, Any]], end: float) -> None:
        """Run the rounds of a case that are not among the earlier records; one round is finished
        whatever the time.
        """
        plans = {side: sample.describe() for side, sample in case.samples.items()}
        records = [
            r
            for r in earlier
            if r["role"] == "matmul" or ("result" in r and r["spec"] == plans.get(r["side"]))
        ]
        run_name = earlier[-1]["run"] if earlier else time.strftime("%Y%m%d-%H%M%S")
        # A run to a quality is one long sample.
        rounds, ran = (1 if case.suite == "time_to_quality" else self.args.rounds), False
        for number in range(rounds):
            begin = time.monotonic()
            best, done = fastest_stock(records), {(r["side"], r["round"]) for r in records}
            for side, sample in case.samples.items():
                # After the first round only the fastest configuration of stock takes turns with its
                # defaults and ours.
                is_slower = number > 0 and best is not None and is_stock(side)
                if (side, number) in done or (is_slower and side not in (STOCK_DEFAULTS, best)):
                    continue
                ran = True
                records.append(self.sample(case, sample, run_name, number))
                figure = records[-1].get("result", {}).get(case.rate)
                shown = records[-1].get("error") if figure is None else f"{figure:,.1f}"
                logger.info(
                    "  round %d %s: %s %s", number + 1, side, shown, case.rate.replace("_", " ")
                )
            if number == 0 and case.matmul and not any(r["role"] == "matmul" for r in records):
                records.append(self.sample(case, case.matmul, run_name, None, role="matmul"))
            took, left = time.monotonic() - begin, end - time.monotonic()
            if took * 1.05 > left and number + 1 < rounds:
                logger.info(
                    "  no time for another round (%.0f s): %d of %d", took, number + 1, rounds
                )
                break
        if not ran:
            logger.info("  finished before")

    def sample(
        self, case: Case, sample: Sample, run_name: str, number: int | None, role: str = "sample"
    ) -> dict[str, Any]:
        """Run one sample and record it; one that fails is a record with its `error`."""
        start = time.monotonic()
        result, error = run_sample(sample, self.args.threads)
        record = {
            "suite": case.suite,
            "case": case.name,
            "role": role,
            "side": sample.side,
            "round": number,
            "run": run_name,
            "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "wall_seconds": round(time.monotonic() - start, 1),
            "machine": result.pop("machine", None),
            "spec": sample.describe(),
            **({"error": error} if error else {"result": result}),
        }
        add_result(self.file, record)
        self.known.append(record)
        return record


def main() -> None:
    """Measure, then write the table and the plots."""
    (args,) = parse_arguments(BenchmarkArguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    if args.measure_lengths:
        print(write_lengths(LENGTHS_FILE, args.data_dir, args.tokenizer))
        return
    if not args.report_only:
        machine = describe_machine()
        if args.use_cpu:
            machine["gpu"] = None
        if args.threads is not None:
            machine["threads"] = args.threads
        run = SuiteRun(args, machine)
        with tempfile.TemporaryDirectory(
            prefix="bert-recipes-benchmark-", ignore_cleanup_errors=True
        ) as work_dir:
            run.run(Cases(args, Path(work_dir)))
    print(write_report(Path(args.output_dir)))
    print(f"table: {Path(args.output_dir) / TABLE_FILE}")


if __name__ == "__main__":
    run_cli(main)
