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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from generated import DOCUMENTS
from lengths import LENGTHS_FILE, TASK_LIMITS, measure_lengths, read_lengths, write_lengths
from report import TABLE_FILE, write_report
from results import (
    Record,
    Records,
    add_result,
    fastest_stock,
    is_stock,
    last_runs,
    machine_name,
    read_results,
    same_machine,
)
from sample import BUDGET, OURS, STEPS, STOCK_DEFAULTS, Result, Sample, check_gpu
from side_by_side import MAX_SAMPLE_SECONDS, run_sample

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.models.sizes import SIZES
from bert_recipes.settings import check_limits, option
from bert_recipes.training.speed import describe_machine


CONFIGS = Path(__file__).resolve().parents[1] / "recipes" / "configs"
SUITES = ("pretraining", "finetuning", "steps", "data", "inference", "time_to_quality")
# Keys of data_suite.MEASURES.
DATA_MEASURES = (
    "store_1",
    "store_2",
    "apart",
    "pairs",
    "masks",
    "worker_bert",
    "worker_roberta",
    "worker_albert",
    "worker_electra",
    "dropin_1",
    "dropin_10",
    "tokenizer",
)
LARGE_SIZES = ("base", "large")
# Defaults that a case's name need not tell.
VOCAB_SIZE, BATCH_SIZE, MEGABYTES = 30_522, 32, 16.0
# Of a pre-training sample, at most: the memory of base's step settles in about eight steps.
WARMUP_SECONDS = 10.0
# Steps of a pass of base and large on a CPU; 50 elsewhere: fifty batches are what both sides sort
# by length at a time.
SLOW_PASS = {
    "sst2": 24,
    "mnli": 16,
    "squad": 8,
    "conll2003": 24,
}
logger = logging.getLogger("benchmark")


@dataclass
class BenchmarkArguments:
    """Settings of a benchmark."""

    suite: str = option("pretraining", "what is measured", choices=(*SUITES, "all"))
    sizes: list[str] | None = option(
        None,
        "default: by suite",
        choices=tuple(SIZES),
    )
    lengths: list[int] | None = option(
        None,
        "tokens of an input; default: 128",
        least=16,
        most=512,
    )
    tasks: list[str] | None = option(
        None,
        "default: by suite",
        choices=tuple(TASK_LIMITS),
    )
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
        check_limits(self)
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
        from sides import section_of_machine, stock_configurations

        self.args = args
        self.is_all = args.suite == "all"
        self.base = Sample(
            kind="",
            work_dir=str(work_dir),
            vocab_size=args.vocab_size,
            use_cpu=args.use_cpu,
            budget_seconds=args.budget_seconds,
        )
        self.stock = stock_configurations(section_of_machine(self.base))

    def of_suite(self) -> list[Case]:
        """Return the cases of the suite, or of all suites."""
        makers = {
            "pretraining": self.pretraining,
            "finetuning": self.finetuning,
            "steps": self.steps,
            "data": self.data,
            "inference": self.inference,
            "time_to_quality": self.time_to_quality,
        }
        cases: list[Case] = []
        for suite in SUITES:
            if self.is_all or suite == self.args.suite:
                cases += makers[suite]()
        return cases

    def _name(self, *words: str) -> str:
        """Name a case with what is not the default of its work.

        Cases of other work do not meet in the results.
        """
        names = [word for word in words if word]
        if self.args.vocab_size != VOCAB_SIZE:
            names.append(f"vocab{self.args.vocab_size}")
        return "-".join(names)

    def _sides(self, sample: Sample) -> dict[str, Sample]:
        """Return the sample of each configuration of stock, and of ours."""
        samples = {}
        for side, switches in self.stock.items():
            samples[side] = replace(
                sample,
                side=side,
                switches=switches,
            )
        samples[OURS] = replace(sample, side=OURS)
        return samples

    def pretraining(self) -> list[Case]:
        """Return size x length; alone: tiny and mini at 128."""
        sizes, lengths = ["tiny", "mini"], [128]
        if self.is_all:
            sizes, lengths = list(SIZES), [128, 512]
        cases = []
        for size in self.args.sizes or sizes:
            for length in self.args.lengths or lengths:
                cases.append(self._pretraining_case(size, length))
        return cases

    def _default_tokens(self, size: str) -> int:
        """Return the positions of a pre-training step."""
        tokens = 2048 if size in LARGE_SIZES else 4096
        if self.base.on_cpu:
            return tokens
        # What fills a GPU; stock's defaults hold all logits in float32.
        return tokens * (8 if size == "large" else 16)

    def _pretraining_case(self, size: str, length: int) -> Case:
        args, default_tokens = self.args, self._default_tokens(size)
        tokens = args.tokens_per_step or default_tokens
        name = self._name(
            f"{size}-{length}",
            "" if args.documents == "long" else args.documents,
            "store" if args.store else "",
            "" if tokens == default_tokens else f"{tokens}tokens",
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

        matmul = replace(
            sample,
            kind="matmul",
            variant="pretraining",
            config="",
            store=None,
        )

        return Case("pretraining", name, self._sides(sample), matmul=matmul)

    def steps(self) -> list[Case]:
        """Return ours step by step beside stock's defaults: what each of them gives."""
        cases = []
        for case in self.pretraining():
            samples = {STOCK_DEFAULTS: case.samples[STOCK_DEFAULTS]}
            for side, (_, switches) in STEPS.items():
                if switches.get("precision", "fp32") not in self.base.precisions:
                    continue
                samples[side] = replace(
                    case.samples[OURS],
                    side=side,
                    switches=switches,
                )
            cases.append(Case("steps", case.name, samples))
        return cases

    def _lengths(self, task: str) -> tuple[int, ...]:
        if self.args.data_dir and self.args.tokenizer:
            return measure_lengths(task, self.args.data_dir, self.args.tokenizer)
        return read_lengths()[task]

    def finetuning(self) -> list[Case]:
        """Return task x size; alone: SST-2 at the shape of base."""
        tasks = list(TASK_LIMITS) if self.is_all else ["sst2"]
        cases = []
        for task in self.args.tasks or tasks:
            lengths = self._lengths(task)
            for size in self.args.sizes or ["base"]:
                cases.append(self._finetuning_case(task, size, lengths))
        return cases

    def _finetuning_case(self, task: str, size: str, lengths: tuple[int, ...]) -> Case:
        args, limit, num_steps = self.args, TASK_LIMITS[task], 50
        if size in LARGE_SIZES and self.base.on_cpu:
            num_steps = SLOW_PASS[task]
        if args.budget_seconds < 2:
            num_steps = 4
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
            max_steps=num_steps,
        )

        samples = self._sides(sample)
        for side, side_sample in samples.items():
            # Batches of several lengths are measured as a whole, or the mean is not that of the
            # task, and in the second epoch: products are prepared once for each of their shapes.
            padding = side_sample.switches.get("padding", limit.stock_padding)
            if side == OURS or padding == "batch":
                samples[side] = replace(
                    side_sample,
                    whole_pass=True,
                    warmup_steps=num_steps,
                )

        matmul = replace(
            sample,
            kind="matmul",
            variant="finetuning",
            config="",
            tokens_per_step=args.batch_size * limit.max_length,
            lengths=(),
        )
        batch = "" if args.batch_size == BATCH_SIZE else f"batch{args.batch_size}"
        name = self._name(
            f"{task}-{size}",
            batch,
            self._lengths_name(),
        )
        return Case("finetuning", name, samples, "examples_per_second", matmul)

    def _lengths_name(self) -> str:
        return "own_lengths" if self.args.data_dir else ""

    def inference(self) -> list[Case]:
        """Return precision x size, with the lengths of SST-2.

        Stock is padded to the batch, in the order of the rows.
        """
        cases, lengths = [], self._lengths("sst2")
        for size in self.args.sizes or ["base"]:
            for precision in self.base.precisions:
                sample = replace(
                    self.base,
                    kind="inference",
                    config=str(CONFIGS / "finetune" / "glue.yaml"),
                    size=size,
                    task="sst2",
                    lengths=lengths,
                    precision=precision,
                    batch_size=64,
                )
                samples = {side: replace(sample, side=side) for side in (STOCK_DEFAULTS, OURS)}
                name = self._name(f"sst2-{size}-{precision}", self._lengths_name())
                cases.append(Case("inference", name, samples, "examples_per_second"))

        return cases

    def data(self) -> list[Case]:
        """Return one case a measure; ours alone."""
        megabytes, files = self.args.megabytes, tuple(self.args.files or ())
        amount = ""
        if files:
            amount = "files"
        elif megabytes != MEGABYTES:
            amount = f"{megabytes:g}mb"
        sample = replace(
            self.base,
            kind="data",
            side=OURS,
            megabytes=megabytes,
            files=files,
        )
        cases = []
        for measure in DATA_MEASURES:
            samples = {OURS: replace(sample, variant=measure)}
            cases.append(Case("data", self._name(measure, amount), samples, "per_second"))
        return cases

    def time_to_quality(self) -> list[Case]:
        """Return some minutes from raw text, by three sides.

        The quickstart's settings, the same with the paper's optimizer, and stock.
        """
        size = self.args.sizes[0] if self.args.sizes else "tiny"
        files = tuple(self.args.files or ())
        sample = replace(
            self.base,
            kind="quality",
            config=str(CONFIGS / "pretrain" / "quickstart.yaml"),
            size=size,
            minutes=self.args.minutes,
            files=files,
        )
        name = self._name(f"{size}-{self.args.minutes:g}min", "files" if files else "")
        samples = {side: replace(sample, side=side) for side in (BUDGET, OURS, STOCK_DEFAULTS)}
        return [Case("time_to_quality", name, samples, "mlm_loss")]

    def best_for_quality(self, case: Case, records: Iterable[Record]) -> Case:
        """Give stock the configuration that was the fastest for its size on this machine.

        In pre-training at 128 tokens, if one was measured.
        """
        size = case.samples[OURS].size
        best = fastest_stock(last_runs(records).get(("pretraining", f"{size}-128"), []))
        if best is None or best not in self.stock:
            logger.info(
                "  stock with its defaults: no fastest configuration for %s-128 on this machine "
                "is known",
                size,
            )
            return case
        stock = replace(
            case.samples[STOCK_DEFAULTS],
            side=best,
            switches=self.stock[best],
        )
        samples = {
            BUDGET: case.samples[BUDGET],
            OURS: case.samples[OURS],
            best: stock,
        }
        return replace(case, samples=samples)


class SuiteRun:
    """Runs cases one after the other within the time limit; every sample becomes a record."""

    def __init__(self, args: BenchmarkArguments, machine: Record) -> None:
        self.args = args
        self.machine = machine
        self.file = Path(args.output_dir).resolve() / f"{machine_name(machine)}.json"
        self.records: list[Record] = []
        for record in read_results(self.file):
            if record.get("machine") and same_machine(record["machine"], machine):
                self.records.append(record)

    def run(self, cases: Cases) -> None:
        """Run everything that is not there yet."""
        limit = self.args.time_limit_minutes * 60
        end, todo = time.monotonic() + limit, cases.of_suite()
        resumes = cases.is_all if self.args.resume is None else self.args.resume
        for number, case in enumerate(todo):
            seconds = end - time.monotonic()
            if number and not cases.is_all and seconds <= 0:
                logger.warning(
                    "no time for %s; give more, or fewer cases: --time_limit_minutes is %g",
                    ", ".join(case.name for case in todo[number:]),
                    self.args.time_limit_minutes,
                )
                return
            logger.info(
                "case %d of %d: %s %s",
                number + 1,
                len(todo),
                case.suite,
                case.name,
            )
            if case.suite == "time_to_quality":
                case = cases.best_for_quality(case, self.records)
            earlier = last_runs(self.records).get((case.suite, case.name), [])
            share = limit if cases.is_all else max(seconds, 0.0) / (len(todo) - number)
            self.run_case(
                case,
                earlier if resumes else [],
                time.monotonic() + share,
            )

    def run_case(self, case: Case, earlier: Records, end: float) -> None:
        """Run the rounds of a case that are not among the earlier records.

        One round is finished whatever the time.
        """
        # The report takes all samples of a run together.
        if any(_has_other_settings(record, case) for record in earlier):
            earlier = []
        records = [record for record in earlier if _is_finished(record, case)]
        run_name = earlier[-1]["run"] if earlier else time.strftime("%Y%m%d-%H%M%S")
        # A run to a quality is one long sample.
        num_rounds = 1 if case.suite == "time_to_quality" else self.args.rounds
        num_before = len(records)
        for number in range(num_rounds):
            begin = time.monotonic()
            records += self._run_round(case, records, run_name, number)
            seconds, remaining = time.monotonic() - begin, end - time.monotonic()
            if seconds * 1.05 > remaining and number + 1 < num_rounds:
                logger.info(
                    "  no time for another round (%.0f s): %d of %d",
                    seconds,
                    number + 1,
                    num_rounds,
                )
                break

        if len(records) == num_before:
            logger.info("  finished before")

    def _run_round(self, case: Case, records: Records, run_name: str, number: int) -> list[Result]:
        """Run the sides of a round that are not among the records; return what was measured."""
        best = fastest_stock([record for record in records if record["round"] == 0])
        finished = {(record["side"], record["round"]) for record in records}
        new_records = []
        for side, sample in case.samples.items():
            # After the first round only the fastest configuration of stock takes turns with its
            # defaults and ours.
            is_slower = is_stock(side) and side not in (STOCK_DEFAULTS, best)
            if (side, number) in finished or (number and best is not None and is_slower):
                continue
            record = self.sample(case, sample, run_name, number)
            new_records.append(record)
            figure = record.get("result", {}).get(case.rate)
            outcome = record.get("error") if figure is None else f"{figure:,.1f}"
            rate = case.rate.replace("_", " ")
            logger.info("  round %d %s: %s %s", number + 1, side, outcome, rate)

        has_matmul = any(record["role"] == "matmul" for record in records)
        if number == 0 and case.matmul is not None and not has_matmul:
            new_records.append(self.sample(case, case.matmul, run_name, None, role="matmul"))
        return new_records

    def sample(
        self, case: Case, sample: Sample, run_name: str, number: int | None, role: str = "sample"
    ) -> Result:
        """Run one sample and record it; one that fails is a record with its `error`."""
        start = time.monotonic()
        timeout = MAX_SAMPLE_SECONDS
        if case.suite == "time_to_quality":
            # Evaluations and the vocabulary do not count as its minutes.
            timeout += 2 * 60 * self.args.minutes
        result, error = run_sample(sample, self.args.threads, timeout)
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
        }

        if error:
            record["error"] = error
        else:
            record["result"] = result
        add_result(self.file, record)
        self.records.append(record)
        return record


def _is_finished(record: Record, case: Case) -> bool:
    """Return whether a record is one that a run of the case would make."""
    if "result" not in record:
        return False
    return record["role"] == "matmul" or record["side"] in case.samples


def _has_other_settings(record: Record, case: Case) -> bool:
    """Return whether a record is of a sample with other settings than those of the case."""
    sample = case.samples.get(record["side"])
    return sample is not None and record["spec"] != sample.describe()


def main() -> None:
    """Measure, then write the table and the plots."""
    (args,) = parse_arguments(BenchmarkArguments)
    logging.basicConfig(
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        level=logging.INFO,
    )
    if args.measure_lengths:
        print(write_lengths(LENGTHS_FILE, args.data_dir, args.tokenizer))
        return
    if not args.report_only:
        check_gpu(use_cpu=args.use_cpu)
        machine = describe_machine(torch.device("cpu") if args.use_cpu else None)
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
