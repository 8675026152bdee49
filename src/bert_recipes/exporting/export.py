"""From a checkpoint to a folder that needs neither torch nor this project, with proof beside it
that it says the same.
"""

import logging
import math
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import Environment, StrictUndefined
from torch import nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from bert_recipes.config import element_type, field_types, read_text
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.exporting.arguments import PACKAGES, ExportArguments
from bert_recipes.exporting.onnx import (
    INPUTS,
    MODEL_FILE,
    PRETRAINING,
    Head,
    Int8Settings,
    OnnxModel,
    describe_graph,
    describe_weights,
    export_graph,
    head_of,
    inputs_of,
    open_stock,
    quantize,
    size_of,
)
from bert_recipes.files import atomic_dir, strict, write_json
from bert_recipes.finetuning.arguments import (
    TASK_FILE,
    InputArguments,
    PredictionArguments,
    ScoringArguments,
    check_access,
    read_model_config,
)
from bert_recipes.finetuning.checkpoints import open_tokenizer
from bert_recipes.finetuning.kind import NOT_FINITE, EncodedSplit
from bert_recipes.finetuning.prediction import load_predictor, read_chunks
from bert_recipes.finetuning.run import prepare_run
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.rows import read_lines
from bert_recipes.tasks.task import with_suffix
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.training.arguments import (
    DataArguments,
    ModelArguments,
    choose_precision,
    key_in_last_phase,
)
from bert_recipes.training.bert_trainer import EVALUATION_SEED, EvaluationSampler
from bert_recipes.training.pretraining import load_data, load_model
from bert_recipes.training.resume import CONFIG_FILE
from bert_recipes.training.speed import describe_machine, keep_freed_memory
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)

# Points of 100 that are no difference between two int8 models.
SCORE_MARGIN = 0.5
# Inputs of a turn that are run one at a time.
ALONE_EXAMPLES = 32
CHECKPOINT, CHECKPOINT_BF16 = "checkpoint, fp32", "checkpoint, bf16"
ONNX, INT8 = "onnxruntime, fp32", "onnxruntime, int8"
# Settings of this machine and of the last evaluation, not of the data.
_NOT_OF_THE_DATA = ("max_eval_pairs", "data_cache_dir", "data_num_processes")

Batch = Mapping[str, torch.Tensor]


class Side(nn.Module):
    """A model in one precision, which keeps how far its outputs at real tokens are from those of a
    reference.

    `largest` is the largest absolute difference, infinite where an output is not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        head: Head,
        reference: "Side | None" = None,
        *,
        uses_bf16: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.head, self.reference, self.uses_bf16 = (
            model.eval(),
            head,
            reference,
            uses_bf16,
        )
        self.largest, self._sum, self._count = 0.0, 0.0, 0
        self._inputs = inputs_of(model)

    @property
    def mean(self) -> float:
        """Mean absolute difference."""
        return self._sum / max(self._count, 1)

    @torch.no_grad()
    def forward(self, **batch: torch.Tensor) -> ModelOutput:
        """Outputs of the head, float32."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.uses_bf16):
            found = self.model(**{name: batch[name] for name in self._inputs if name in batch})
        output = ModelOutput({name: found[name].float() for name in self.head.outputs})
        if self.reference is not None:
            self.compare(self.reference(**batch), output, batch["attention_mask"].bool())
        return output

    def compare(
        self, expected: Mapping[str, Any], output: Mapping[str, Any], mask: torch.Tensor
    ) -> None:
        """Add the differences of a batch; outputs at pads mean nothing and are left out."""
        for name in self.head.outputs:
            # Row by row: logits over a vocabulary are large.
            for number, (one, other) in enumerate(zip(expected[name], output[name], strict=True)):
                difference = (one - other).abs()
                if self.head.is_by_token(name):
                    difference = difference[mask[number]]
                if difference.numel():
                    largest = difference.max().item()
                    self.largest = max(
                        self.largest, largest if math.isfinite(largest) else math.inf
                    )
                    self._sum += difference.sum(dtype=torch.float64).item()
                    self._count += difference.numel()


# Inputs


@dataclass(frozen=True)
class Inputs:
    """What all models run on, and how they are scored there."""

    model: nn.Module
    source: str
    unit: str
    number: int
    max_seq_length: int
    score: str | None  # the metric of which int8 may lose little; None without labels
    point: float  # of the metric: a point of 100
    batches: Callable[[int], Iterator[Batch]]  # of a size
    # Side, batch size -> metrics, none without labels; and what is predicted, nothing for numbers.
    measure: Callable[[Side, int], tuple[dict[str, float], list[Any]]]


def _task_inputs(
    trainer: FineTuningTrainer, splits: Mapping[str, EncodedSplit], source: str
) -> Inputs:
    """Splits of a task, on which the Trainer scores any model with the head's outputs."""
    model: Any = trainer.model
    kind, is_labelled = trainer.kind, all(encoded.split.is_labelled for encoded in splits.values())

    def batches(size: int) -> Iterator[Batch]:
        for encoded in splits.values():
            order = np.argsort(
                -encoded.lengths, kind="stable"
            )  # batches of like length, the longest first
            for start in range(0, len(order), size):
                yield kind.collate([encoded[number] for number in order[start : start + size]])

    def measure(side: Side, size: int) -> tuple[dict[str, float], list[Any]]:
        trainer.model = side
        scores: dict[str, float] = {}
        decisions: list[Any] = []
        for suffix, encoded in splits.items():
            predictions = trainer.predict_split(encoded)
            if is_labelled:
                found = kind.score(encoded.split.examples, predictions)
                scores |= {with_suffix(suffix, name): float(value) for name, value in found.items()}
            for prediction in predictions:
                value: Any = prediction.value
                decisions += value if kind.task.kind == "token_classification" else [value]
        return scores, [] if any(isinstance(value, float) for value in decisions) else decisions

    return Inputs(
        model=model,
        source=source,
        unit="examples",
        number=sum(len(encoded.split.examples) for encoded in splits.values()),
        max_seq_length=kind.settings.max_seq_length,
        score=kind.task.best_metric if is_labelled else None,
        # SQuAD's scripts count in percent, all others from 0 to 1.
        point=1.0 if kind.task.kind == "question_answering" else 0.01,
        batches=batches,
        measure=measure,
    )


def _measure_pretraining(
    side: Side, batches: Iterator[Batch]
) -> tuple[dict[str, float], list[Any]]:
    """Losses and accuracies; the token put in for each [MASK] and the verdict on each pair."""
    losses: dict[str, list[torch.Tensor]] = defaultdict(list)
    hits: dict[str, list[bool]] = defaultdict(list)
    decisions: list[int] = []
    for batch in batches:
        output: Any = side(**{name: batch[name] for name in INPUTS})
        if not all(torch.isfinite(values).all() for values in output.values()):
            raise InputError(NOT_FINITE)
        masked = batch["labels"] != IGNORE_INDEX
        parts = {"mlm": (output["prediction_logits"][masked], batch["labels"][masked])}
        if "next_sentence_label" in batch:
            parts["nsp"] = output["seq_relationship_logits"], batch["next_sentence_label"]
        for name, (logits, targets) in parts.items():
            losses[name] += F.cross_entropy(logits, targets, reduction="none")
            hits[name] += (logits.argmax(-1) == targets).tolist()
            decisions += logits.argmax(-1).tolist()
    scores: dict[str, float] = {}
    for name, found in hits.items():
        if found:
            scores[f"{name}_loss"] = torch.stack(losses[name]).double().mean().item()
            scores[f"{name}_accuracy"] = statistics.fmean(found)
    return scores, decisions


def load_inputs(
    args: ExportArguments,
    config: PretrainedConfig,
    head: Head,
    tokenizer: OriginalBertTokenizer,
    work_dir: Path,
) -> Inputs:
    """Find and read the inputs, by the flags or else by the run.yaml beside the weights, and open
    the checkpoint.
    """
    is_pretrained = head.name == PRETRAINING
    for name in (
        ("task", "task_file", "text_columns", "choice_columns") if is_pretrained else ("store",)
    ):
        if getattr(args, name) is not None:
            kind = "a pre-trained" if is_pretrained else "a fine-tuned"
            raise InputError(
                f"--{name} is not for {kind} model, which {args.model_name_or_path} is"
            )
    file = Path(args.model_name_or_path) / CONFIG_FILE
    trained = read_tree(file)[0] if file.is_file() else {}
    if is_pretrained:
        return _load_pretraining_inputs(args, config, tokenizer, trained)
    return _load_task_inputs(args, trained, work_dir)


def _load_task_inputs(args: ExportArguments, trained: Mapping[str, Any], work_dir: Path) -> Inputs:
    name, most = args.model_name_or_path, args.max_eval_examples
    columns: Any = {"text_columns": args.text_columns, "choice_columns": args.choice_columns}
    sizes: Any = {"batch_size": args.batch_size, "precision": "fp32", "use_cpu": True}
    wanted = PredictionArguments(name, input_file=args.input_file or "", **columns, **sizes)
    run_arguments = wanted.run_arguments(str(work_dir))
    run_arguments.disable_tqdm = True
    if args.input_file is not None:
        predictor, num_inputs = load_predictor(wanted, InputArguments(), run_arguments)
        path, trainer = Path(args.input_file), predictor.trainer
        first = next(read_chunks(path, predictor.task, min(most, num_inputs)))
        splits = {"": trainer.kind.encode(first.split)}
        source = f"{path.name} ({len(first.ids)} of {num_inputs})"
    else:
        task_name, task_file = args.task, args.task_file
        if task_name is None and task_file is None:
            task_name, task_file = trained.get("task"), trained.get("task_file")
            beside = Path(name) / TASK_FILE
            if task_file is not None and not Path(task_file).is_file() and beside.is_file():
                task_file = str(beside)
        if task_name is None and task_file is None:
            raise InputError(
                f"{name} does not say on what it was measured; give --task NAME or --task_file "
                "FILE (with --data_dir), or "
                "--input_file with inputs of any kind"
            )
        data_dir = args.data_dir or trained.get("data_dir")
        settings = ScoringArguments(
            model_name_or_path=name,
            task=task_name,
            task_file=task_file,
            data_dir=data_dir,
            max_eval_examples=most,
        )
        task = check_access(settings, for_training=False)
        if not task.validation_splits:
            raise InputError(
                f"task {task.name} has no validation split; give --input_file with inputs of any "
                "kind"
            )
        trainer = prepare_run(settings, run_arguments, for_training=False).trainer
        splits = dict(trainer.eval_splits)
        parts = [
            (each.split.name, len(each.split.examples), each.split.num_rows)
            for each in splits.values()
        ]
        source = (
            f"task {task.name}, "
            f"{', '.join(f'{split} ({part} of {rows})' for split, part, rows in parts)}"
        )
    enable_packed_layers(trainer.model, "auto")
    return _task_inputs(trainer, splits, source)


def _load_pretraining_inputs(
    args: ExportArguments,
    config: PretrainedConfig,
    tokenizer: OriginalBertTokenizer,
    trained: Mapping[str, Any],
) -> Inputs:
    """Held-out pairs, or lines of text, with the masks of every evaluation."""
    name, most, other = (
        args.model_name_or_path,
        args.max_eval_examples,
        "--input_file with lines of text",
    )
    settings, collator = _data_settings(trained), DataCollatorForPreTraining(tokenizer)
    if args.input_file is not None:
        length = min(settings.get("max_seq_length", 512), config.max_position_embeddings)
        examples = _read_texts(Path(args.input_file), tokenizer, length, most)
        source, unit = f"{Path(args.input_file).name} ({len(examples)} texts)", "texts"
    else:
        if args.store is not None:
            settings = {
                key: value
                for key, value in settings.items()
                if key not in ("train_file", "validation_file")
            }
            settings |= {"store": args.store, "tokenizer": None}
        trained_on = settings.get("store") or settings.get("train_file")
        if not trained_on:
            raise InputError(
                f"{name} does not say on what it was measured; give --store FOLDER "
                f"(recipes/prepare_corpus.py), or {other}"
            )
        data = load_data(DataArguments(**settings), EVALUATION_SEED)
        tokenizer, collator, length, held_out = (
            data.tokenizer,
            data.collator,
            data.max_seq_length,
            data.validation,
        )
        if held_out is None:
            raise InputError(f"{trained_on} has no held-out part; give another --store, or {other}")
        (keys,) = EvaluationSampler(held_out, most, most, 0, 1)
        examples = [held_out[key] for key in keys]
        file = settings.get("store") or settings.get("validation_file")
        source, unit = f"held-out pairs of {file}, of {held_out.num_pairs(0):,}", "pairs"
    model = load_model(ModelArguments(model_name_or_path=name), tokenizer, length, seed=0)
    enable_packed_layers(model, "auto")
    collate: Any = replace(collator, seed=EVALUATION_SEED)

    def batches(size: int) -> Iterator[Batch]:
        return (collate(examples[start : start + size]) for start in range(0, len(examples), size))

    counts = (len(examples), length, "mlm_accuracy", 0.01)
    return Inputs(
        model,
        source,
        unit,
        *counts,
        batches,
        lambda side, size: _measure_pretraining(side, batches(size)),
    )


def _read_texts(
    path: Path, tokenizer: OriginalBertTokenizer, max_seq_length: int, most: int
) -> list[dict[str, Any]]:
    """Lines of a file as single segments; blank ones are left out, long ones cut. The key decides
    the mask.
    """
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file")
    cut = (tokenizer.encode_ids(line)[: max_seq_length - 2] for line in read_lines(path))
    rows = [
        [int(tokenizer.cls_token_id), *pieces, int(tokenizer.sep_token_id)]
        for pieces in cut
        if pieces
    ][:most]
    if not rows:
        raise InputError(f"--input_file {path}: no text in it")
    return [
        {"input_ids": ids, "token_type_ids": [0] * len(ids), "key": (0, number)}
        for number, ids in enumerate(rows)
    ]


def _data_settings(trained: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `DataArguments` that run.yaml has, as they were in the run's last phase."""
    values: dict[str, Any] = {}
    for name, hint in field_types(DataArguments).items():
        text = trained.get(key_in_last_phase(trained, name))
        if text is not None and name not in _NOT_OF_THE_DATA:
            is_list = isinstance(text, list)
            values[name] = (
                [read_text(element_type(hint), each) for each in text]
                if is_list
                else read_text(hint, text)
            )
    return values


# The export


def export_checkpoint(args: ExportArguments) -> dict[str, Any]:
    """Export, compare, measure, and only then write the folder; return what export.json holds."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    keep_freed_memory()  # as the recipes run on a CPU
    name = args.model_name_or_path
    config = read_model_config(name)
    head = head_of(config, name)
    stock = open_stock(name, head)  # first: what is incomplete is refused before any data is read
    tokenizer = open_tokenizer(name)
    with tempfile.TemporaryDirectory() as work_dir:
        inputs = load_inputs(args, config, head, tokenizer, Path(work_dir))
        logger.info("%s: compared on %d %s: %s", name, inputs.number, inputs.unit, inputs.source)
        with atomic_dir(args.folder) as folder:
            report = _write_model(args, head, stock, inputs, folder)
            stock.config.architectures = [
                type(stock).__name__
            ]  # an old checkpoint names one of its two heads
            stock.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            shutil.copyfile(
                Path(__file__).parent / "examples" / f"{head.name}.py", folder / "example.py"
            )
            write_json(folder / "export.json", report)
            (folder / "export.md").write_text(format_report(report), encoding="utf-8")
            return report


def _write_model(
    args: ExportArguments, head: Head, stock: PreTrainedModel, inputs: Inputs, folder: Path
) -> dict[str, Any]:
    threads, start = torch.get_num_threads(), time.perf_counter()
    (folder / "fp32").mkdir()
    kept = plain = export_graph(stock, head, folder / "fp32", args.opset)
    logger.info("exported: %.1f MB in %.1f s", size_of(plain) / 1e6, time.perf_counter() - start)
    checkpoint = Side(inputs.model, head)
    sides = {CHECKPOINT: checkpoint}
    if (
        choose_precision("auto", use_cpu=True).name == "bf16"
    ):  # what the recipes take on this machine
        sides[CHECKPOINT_BF16] = Side(inputs.model, head, checkpoint, uses_bf16=True)
    sides[ONNX] = Side(OnnxModel(plain, threads), head, checkpoint)
    expected: list[Any] = []

    def measure(side: Side) -> dict[str, Any]:
        """Scores and differences as the report has them: what is not defined or not finite is
        null.
        """
        scores, decisions = inputs.measure(side, args.batch_size)
        expected[:] = expected or decisions
        same = [one == other for one, other in zip(expected, decisions, strict=True)]
        differences = {"largest_difference": side.largest, "mean_difference": side.mean}
        same_predictions = statistics.fmean(same) if same else None
        return dict(strict({"scores": scores, **differences, "same_predictions": same_predictions}))

    rows = {name: measure(side) for name, side in sides.items()}
    if not sides[ONNX].largest <= args.tolerance:
        raise InputError(
            "the exported model is not the checkpoint: outputs differ by up to "
            f"{sides[ONNX].largest:.2g}, allowed: "
            f"{args.tolerance:.2g} (--tolerance); nothing was written"
        )
    weights = [
        file.stat().st_size for file in Path(args.model_name_or_path).glob("model*.safetensors")
    ]
    parameters = sum(
        parameter.numel() * parameter.element_size() for parameter in stock.parameters()
    )
    sizes, int8 = {CHECKPOINT: sum(weights) or parameters, ONNX: size_of(plain)}, {}
    if args.format == "int8":
        tried = []
        for embeddings in (True, False) if args.embeddings is None else (args.embeddings,):
            settings = Int8Settings(args.per_channel is not False, embeddings, args.reduce_range)
            file = quantize(plain, folder / f"int8-{embeddings}", settings)
            side = Side(OnnxModel(file, threads), head, checkpoint)
            tried.append(Int8Try(settings, file, side, measure(side)))
            logger.info(
                "int8, %s: %s %s",
                settings.name,
                inputs.score,
                tried[-1].row["scores"].get(inputs.score),
            )
        best = choose_int8(tried, inputs.score, SCORE_MARGIN * inputs.point)
        tried.sort(key=lambda each: each is not best)  # the one taken first
        kept, sides[INT8], rows[INT8], sizes[INT8] = (
            best.file,
            best.side,
            best.row,
            size_of(best.file),
        )
        # Texts of which no token was masked have no score.
        old, new = (row["scores"].get(inputs.score) for row in (rows[CHECKPOINT], best.row))
        if old is not None and (new is None or (old - new) / inputs.point > args.max_score_drop):
            raise InputError(
                f"int8 loses too much: {inputs.score} is "
                f"{new if new is None else format(new, '.4g')}, that of the checkpoint "
                f"{old:.4g}; allowed: {args.max_score_drop:g} points less (--max_score_drop); "
                "nothing was written"
            )
        entries = [
            {"settings": each.settings.name, "bytes": size_of(each.file), **each.row}
            for each in tried
        ]
        int8 = {
            "int8": describe_weights(kept, best.settings)
            | {"tried_on": inputs.number, "tried": entries}
        }
    for side in sides.values():
        side.reference = None  # speed is that of the model alone
    speed = measure_speed(sides, inputs.batches(min(args.batch_size, args.speed_examples)), args)
    for part in kept.parent.iterdir():
        part.rename(folder / part.name)
    for made in [path for path in folder.iterdir() if path.is_dir()]:
        shutil.rmtree(made)
    return {
        "model": args.model_name_or_path,
        "format": args.format,
        "head": head.name,
        "architecture": type(stock).__name__,
        "parameters": stock.num_parameters(),
        "max_seq_length": inputs.max_seq_length,
        "compared_on": {"source": inputs.source, "unit": inputs.unit, "number": inputs.number},
        **{
            "score": inputs.score,
            "tolerance": args.tolerance,
            "max_score_drop": args.max_score_drop,
        },
        "batch_size": args.batch_size,
        "versions": {name: version(name) for name in ("torch", "transformers", *PACKAGES)},
        **describe_graph(folder / MODEL_FILE),
        "rows": [
            {"name": name, "bytes": sizes.get(name), **row, **speed["sides"][name]}
            for name, row in rows.items()
        ],
        "speed": {"examples": speed["examples"], "tokens": speed["tokens"], "rounds": args.rounds},
        "threads": threads,
        "load_average": speed["load_average"],
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
        **int8,
    }


class Int8Try(NamedTuple):
    """One way to make the model int8."""

    settings: Int8Settings
    file: Path
    side: Side
    row: dict[str, Any]


def choose_int8(tried: Sequence[Int8Try], score: str | None, margin: float) -> Int8Try:
    """The smallest of those whose score is no more than the margin below the best."""
    found = [each.row["scores"].get(score, 0.0) for each in tried]
    scores = [-math.inf if value is None else value for value in found]
    good = [
        each for each, value in zip(tried, scores, strict=True) if value >= max(scores) - margin
    ]
    return min(good, key=lambda each: size_of(each.file))


# Speed


def measure_speed(
    sides: Mapping[str, nn.Module], batches: Iterator[Batch], args: ExportArguments
) -> dict[str, Any]:
    """Run all models over the same batches in turns, several rounds; in each another one begins.

    The batches are taken at equal distances, so that all lengths are there. A turn starts with one
    that is not counted.
    """
    everything = [{name: batch[name] for name in INPUTS if name in batch} for batch in batches]
    wanted = max(1, min(len(everything), args.speed_examples // args.batch_size))
    chosen = [everything[number * len(everything) // wanted] for number in range(wanted)]
    # Single inputs without their pads, from all batches in turn.
    most = max(len(batch["input_ids"]) for batch in chosen)
    places = [
        (batch, row) for row in range(most) for batch in chosen if row < len(batch["input_ids"])
    ]
    alone = []
    for batch, row in places[:ALONE_EXAMPLES]:
        length = int(batch["attention_mask"][row].sum(-1).max())
        alone.append(
            {name: value[row : row + 1, ..., :length].contiguous() for name, value in batch.items()}
        )
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    names = list(sides)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    single: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rates[name].append(len(places) / sum(_times(sides[name], chosen)))
            single[name].append(1000 * statistics.median(_times(sides[name], alone)))
    medians = {name: statistics.median(own) for name, own in rates.items()}
    found = {}
    for name in names:
        found[name] = {
            "examples_per_second": round(medians[name], 2),
            "ratio": round(medians[name] / medians[names[0]], 3),
            "milliseconds_alone": round(statistics.median(single[name]), 3),
            "rounds": {"examples_per_second": rates[name], "milliseconds_alone": single[name]},
        }
    tokens = sum(int(batch["attention_mask"].sum()) for batch in chosen)
    return {"sides": found, "examples": len(places), "tokens": tokens, "load_average": load}


def _times(side: nn.Module, batches: Sequence[Batch]) -> list[float]:
    side(**batches[0])
    seconds = []
    for batch in batches:
        start = time.perf_counter()
        side(**batch)
        seconds.append(time.perf_counter() - start)
    return seconds


# The report


def format_report(report: Mapping[str, Any]) -> str:
    """export.json as Markdown."""
    environment = Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters["number"] = lambda value, form: (
        "-" if value is None else format(value, form)
    )
    template = (Path(__file__).parent / "export.md.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(report)


def format_table(report: Mapping[str, Any]) -> str:
    """The rows as a Markdown table."""
    return format_report(report).split("\n\n")[2]
