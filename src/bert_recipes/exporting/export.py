"""From a checkpoint to a folder that needs neither torch nor this project, with proof beside it that it says the same."""

import logging
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from bert_recipes.config import accepts_list, element_type, field_types, read_text, read_tree
from bert_recipes.data.collator import DataCollatorForPreTraining
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
from bert_recipes.files import new_folder, write_json
from bert_recipes.finetuning.arguments import (
    TASK_FILE,
    InputArguments,
    PredictionArguments,
    ScoringArguments,
    TaskArguments,
    check_access,
    read_model_config,
)
from bert_recipes.finetuning.checkpoints import open_tokenizer
from bert_recipes.finetuning.kind import NOT_FINITE, EncodedSplit
from bert_recipes.finetuning.prediction import (
    Predictor,
    check_inputs,
    make_predictor,
    read_chunks,
    task_of_checkpoint,
)
from bert_recipes.models.bert import IGNORE_INDEX, BertForPreTrainingOutput
from bert_recipes.models.bert_model import choose_layers
from bert_recipes.tasks.sources import load_split, read_text_lines
from bert_recipes.tasks.task import split_suffixes, with_suffix
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.training.arguments import DataArguments, ModelArguments, choose_precision, key_in_last_phase
from bert_recipes.training.bert_trainer import EVALUATION_SEED, EvaluationSampler, PreTrainingSums
from bert_recipes.training.pretraining import load_data, load_model
from bert_recipes.training.resume import CONFIG_FILE
from bert_recipes.training.speed import describe_machine, keep_freed_memory


logger = logging.getLogger(__name__)

# Points of 100 that are no difference between two int8 models.
SCORE_MARGIN = 0.5
# Inputs of a turn that are run one at a time.
ALONE_EXAMPLES = 32
EXAMPLE_FILE, JSON_FILE, TABLE_FILE = "example.py", "export.json", "export.md"
CHECKPOINT, CHECKPOINT_BF16 = "checkpoint, fp32", "checkpoint, bf16"
ONNX, INT8 = "onnxruntime, fp32", "onnxruntime, int8"
# Settings of this machine and of the last evaluation, not of the data.
_NOT_OF_THE_DATA = ("max_eval_pairs", "data_cache_dir", "data_num_processes")

Batch = Mapping[str, torch.Tensor]


class Side(nn.Module):
    """A model in one precision, which keeps how far its outputs at real tokens are from those of a reference.

    Attributes:
        largest: Largest absolute difference; infinite where an output is not finite.
    """

    def __init__(
        self, model: nn.Module, head: Head, reference: "Side | None" = None, *, uses_bf16: bool = False
    ) -> None:
        super().__init__()
        self.model, self.head, self.reference, self.uses_bf16 = model.eval(), head, reference, uses_bf16
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

    def compare(self, expected: Mapping[str, Any], output: Mapping[str, Any], mask: torch.Tensor) -> None:
        """Add the differences of a batch; outputs at pads mean nothing and are left out."""
        for name in self.head.outputs:
            # Row by row: logits over a vocabulary are large.
            for number, (one, other) in enumerate(zip(expected[name], output[name], strict=True)):
                difference = (one - other).abs()
                if self.head.is_by_token(name):
                    difference = difference[mask[number]]
                if difference.numel():
                    largest = difference.max().item()
                    self.largest = max(self.largest, largest if math.isfinite(largest) else math.inf)
                    self._sum += difference.sum(dtype=torch.float64).item()
                    self._count += difference.numel()


# Inputs


class TaskInputs:
    """Splits of a task, on which the Trainer scores any model with the head's outputs."""

    unit = "examples"

    def __init__(
        self, predictor: Predictor, tokenizer: OriginalBertTokenizer, splits: Mapping[str, EncodedSplit], source: str
    ) -> None:
        self._trainer, self._splits = predictor.trainer, splits
        self.model: Any = predictor.trainer.model
        self.kind = predictor.trainer.kind
        self.tokenizer, self.source = tokenizer, source
        self.num_examples = sum(len(encoded.split.examples) for encoded in splits.values())
        self.max_seq_length = self.kind.settings.max_seq_length
        is_labelled = all(encoded.split.is_labelled for encoded in splits.values())
        self.score = self.kind.task.best_metric if is_labelled else None
        # What a point of 100 is: SQuAD's scripts count in percent, all others from 0 to 1.
        self.point = 1.0 if self.kind.task.kind == "question_answering" else 0.01

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of like length, the longest first."""
        for encoded in self._splits.values():
            order = np.argsort(-encoded.lengths, kind="stable")
            for start in range(0, len(order), size):
                yield self.kind.collate([encoded[number] for number in order[start : start + size]])

    def measure(self, side: Side, batch_size: int) -> tuple[dict[str, float], list[Any]]:
        """Metrics, none without labels; and what is predicted, nothing for numbers."""
        self._trainer.model = side
        scores: dict[str, float] = {}
        decisions: list[Any] = []
        for suffix, encoded in self._splits.items():
            predictions = self._trainer.predict_split(encoded)
            if self.score is not None:
                found = self.kind.score(encoded.split.examples, predictions)
                scores |= {with_suffix(suffix, name): float(value) for name, value in found.items()}
            values: list[Any] = [prediction.value for prediction in predictions]
            is_tagging = self.kind.task.kind == "token_classification"
            decisions += [tag for tags in values for tag in tags] if is_tagging else values
        return scores, [] if any(isinstance(value, float) for value in decisions) else decisions


class PretrainingInputs:
    """Held-out pairs, or lines of text, with the masks of every evaluation."""

    score, point = "mlm_accuracy", 0.01

    def __init__(
        self, model: PreTrainedModel, tokenizer: OriginalBertTokenizer, dataset: Any, collator: Any, max_seq_length: int,
        max_examples: int, source: str, unit: str,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.max_seq_length = model, tokenizer, max_seq_length
        self._dataset, self._max_examples, self._collator = (
            dataset,
            max_examples,
            replace(collator, seed=EVALUATION_SEED),
        )
        self.source, self.unit = source, unit
        self.num_examples = self._sampler(1).num_pairs

    def _sampler(self, size: int) -> EvaluationSampler:
        return EvaluationSampler(self._dataset, self._max_examples, size, 0, 1)

    def batches(self, size: int) -> Iterator[Batch]:
        """Masked batches with their labels."""
        for keys in self._sampler(size):
            yield self._collator([self._dataset[key] for key in keys])

    def measure(self, side: Side, batch_size: int) -> tuple[dict[str, float], list[int]]:
        """Losses and accuracies; the token put in for each [MASK] and the verdict on each pair."""
        sums, decisions = PreTrainingSums(torch.device("cpu")), []
        for batch in self.batches(batch_size):
            output: Any = side(**{name: batch[name] for name in INPUTS})
            masked = batch["labels"] != IGNORE_INDEX
            logits, targets = output["prediction_logits"][masked], batch["labels"][masked]
            if not all(torch.isfinite(values).all() for values in output.values()):
                raise InputError(NOT_FINITE)
            seen = BertForPreTrainingOutput(mlm_loss=_mean_loss(logits, targets), prediction_logits=logits)
            decisions += logits.argmax(-1).tolist()
            if "next_sentence_label" in batch:
                pairs = output["seq_relationship_logits"]
                seen.nsp_loss, seen.seq_relationship_logits = _mean_loss(pairs, batch["next_sentence_label"]), pairs
                decisions += pairs.argmax(-1).tolist()
            sums.add(seen, dict(batch))
        metrics = sums.metrics("")
        names: Sequence[str] = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
        return {name: metrics[f"_{name}"] for name in names if f"_{name}" in metrics}, decisions


def _mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, targets, reduction="sum") / max(targets.numel(), 1)


class TextLines:
    """Lines of a text file as single segments; blank lines are left out, long ones cut. The key decides the mask."""

    def __init__(self, path: Path, tokenizer: OriginalBertTokenizer, max_seq_length: int, max_lines: int) -> None:
        if not path.is_file():
            raise InputError(f"--input_file {path}: no such file")
        self.rows: list[list[int]] = []
        for line in read_text_lines(path):
            ids = tokenizer.encode_ids(line)[: max_seq_length - 2]
            if ids:
                self.rows.append([int(tokenizer.cls_token_id), *ids, int(tokenizer.sep_token_id)])
            if len(self.rows) == max_lines:
                break
        if not self.rows:
            raise InputError(f"--input_file {path}: no text in it")

    def num_pairs(self, epoch: int) -> int:
        """Number of lines."""
        return len(self.rows)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        ids = self.rows[key[1]]
        return {"input_ids": ids, "token_type_ids": [0] * len(ids), "key": key}


Inputs = TaskInputs | PretrainingInputs


def load_inputs(args: ExportArguments, config: PretrainedConfig, head: Head, work_dir: Path) -> Inputs:
    """Find and read the inputs, by the flags or else by the run.yaml beside the weights, and open the checkpoint."""
    is_pretrained = head.name == PRETRAINING
    others = ("task", "task_file", "text_columns", "choice_columns") if is_pretrained else ("store",)
    for name in others:
        if getattr(args, name) is not None:
            kind = "a pre-trained" if is_pretrained else "a fine-tuned"
            raise InputError(f"--{name} is not for {kind} model, which {args.model_name_or_path} is")
    file = Path(args.model_name_or_path) / CONFIG_FILE
    trained = read_tree(file)[0] if file.is_file() else {}
    if is_pretrained:
        return _load_pretraining_inputs(args, config, trained)
    return _load_task_inputs(args, config, trained, work_dir)


def _load_task_inputs(
    args: ExportArguments, config: PretrainedConfig, trained: Mapping[str, Any], work_dir: Path
) -> TaskInputs:
    name, path = args.model_name_or_path, Path(args.input_file or "")
    wanted = PredictionArguments(
        name,
        input_file=str(path),
        text_columns=args.text_columns,
        choice_columns=args.choice_columns,
        batch_size=args.batch_size,
        precision="fp32",
        use_cpu=True,
    )
    if args.input_file is not None:
        task = task_of_checkpoint(config, wanted)
        num_inputs = check_inputs(task, path)
        lengths = InputArguments().resolved(config, name)
        settings = TaskArguments(task=task.name, model_name_or_path=name, **lengths)
    else:
        task_name, task_file = args.task, args.task_file
        if task_name is None and task_file is None:
            task_name, task_file = trained.get("task"), trained.get("task_file")
            if task_file is not None and not Path(task_file).is_file() and (Path(name) / TASK_FILE).is_file():
                task_file = str(Path(name) / TASK_FILE)
        if task_name is None and task_file is None:
            raise InputError(
                f"{name} does not say on what it was measured; give --task NAME or --task_file FILE (with --data_dir), or "
                "--input_file with inputs of any kind"
            )
        data_dir = args.data_dir or trained.get("data_dir")
        settings = ScoringArguments(model_name_or_path=name, task=task_name, task_file=task_file, data_dir=data_dir)
        task = check_access(settings, for_training=False)
        if not task.validation_splits:
            raise InputError(f"task {task.name} has no validation split; give --input_file with inputs of any kind")
    tokenizer = open_tokenizer(name)
    run_arguments = wanted.run_arguments(str(work_dir))
    run_arguments.disable_tqdm = True
    predictor = make_predictor(task, settings, tokenizer, run_arguments)
    choose_layers(predictor.trainer.model, "auto")
    kind = predictor.trainer.kind
    if args.input_file is not None:
        first = next(read_chunks(path, task, min(args.max_eval_examples, num_inputs)))
        splits = {"": kind.encode(first.split, for_training=False)}
        return TaskInputs(predictor, tokenizer, splits, f"{path.name} ({len(first.ids)} of {num_inputs})")
    splits = {}
    for suffix, split in zip(split_suffixes(task.validation_splits), task.validation_splits, strict=True):
        found = load_split(
            task, split, data_dir=settings.data_dir, max_examples=args.max_eval_examples, need_labels=True
        )
        splits[suffix] = kind.encode(found, for_training=False)
    parts = [f"{each.split.name} ({len(each.split.examples)} of {each.split.num_rows})" for each in splits.values()]
    return TaskInputs(predictor, tokenizer, splits, f"task {task.name}, {', '.join(parts)}")


def _load_pretraining_inputs(
    args: ExportArguments, config: PretrainedConfig, trained: Mapping[str, Any]
) -> PretrainingInputs:
    name, most = args.model_name_or_path, args.max_eval_examples
    settings = _data_settings(name, trained)
    if args.input_file is not None:
        path, tokenizer = Path(args.input_file), open_tokenizer(name)
        length = min(settings.get("max_seq_length", 512), config.max_position_embeddings)
        dataset: Any = TextLines(path, tokenizer, length, most)
        collator = DataCollatorForPreTraining(tokenizer)
        source, unit = f"{path.name} ({len(dataset.rows)} texts)", "texts"
    else:
        if args.store is not None:
            settings = {key: value for key, value in settings.items() if key not in ("train_file", "validation_file")}
            settings |= {"store": args.store, "tokenizer": None}
        trained_on = settings.get("store") or settings.get("train_file")
        other = "--input_file with lines of text"
        if not trained_on:
            raise InputError(
                f"{name} does not say on what it was measured; give --store FOLDER (recipes/prepare_corpus.py), or {other}"
            )
        data = load_data(DataArguments(**settings), EVALUATION_SEED)
        tokenizer, collator, length, dataset = data.tokenizer, data.collator, data.max_seq_length, data.validation
        if dataset is None:
            raise InputError(f"{trained_on} has no held-out part; give another --store, or {other}")
        held_out = settings.get("store") or settings.get("validation_file")
        source, unit = f"held-out pairs of {held_out}, of {dataset.num_pairs(0):,}", "pairs"
    model = load_model(ModelArguments(model_name_or_path=name), tokenizer, length, seed=0)
    choose_layers(model, "auto")
    return PretrainingInputs(model, tokenizer, dataset, collator, length, most, source, unit)


def _data_settings(name: str, trained: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `DataArguments` that run.yaml has, as they were in the run's last phase."""
    hints = field_types(DataArguments)
    values: dict[str, Any] = {}
    for item in fields(DataArguments):
        key = key_in_last_phase(trained, item.name)
        text, hint = trained.get(key), hints[item.name]
        if text is None or item.name in _NOT_OF_THE_DATA:
            continue
        try:
            is_list = isinstance(text, list) and accepts_list(hint)
            values[item.name] = (
                [read_text(element_type(hint), each) for each in text] if is_list else read_text(hint, text)
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{Path(name) / CONFIG_FILE}: {key}: {error}") from error
    return values


# The export


def export_checkpoint(args: ExportArguments) -> dict[str, Any]:
    """Export, compare, measure, and only then write the folder; return what export.json holds."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    keep_freed_memory()  # as the recipes run on a CPU
    config = read_model_config(args.model_name_or_path)
    head = head_of(config, args.model_name_or_path)
    stock = open_stock(args.model_name_or_path, head)  # first: what is incomplete is refused before any data is read
    with tempfile.TemporaryDirectory() as work_dir:
        inputs = load_inputs(args, config, head, Path(work_dir))
        logger.info(
            "%s: compared on %d %s: %s", args.model_name_or_path, inputs.num_examples, inputs.unit, inputs.source
        )
        with new_folder(args.folder) as staging:
            return _write_export(args, head, stock, inputs, staging)


def _write_export(
    args: ExportArguments, head: Head, stock: PreTrainedModel, inputs: Inputs, folder: Path
) -> dict[str, Any]:
    threads = torch.get_num_threads()
    start = time.perf_counter()
    (folder / "fp32").mkdir()
    plain = export_graph(stock, head, folder / "fp32", args.opset)
    logger.info("exported: %.1f MB in %.1f s", size_of(plain) / 1e6, time.perf_counter() - start)
    checkpoint = Side(inputs.model, head)
    sides = {CHECKPOINT: checkpoint}
    if choose_precision("auto", use_cpu=True).name == "bf16":  # what the recipes take on this machine
        sides[CHECKPOINT_BF16] = Side(inputs.model, head, checkpoint, uses_bf16=True)
    sides[ONNX] = Side(OnnxModel(plain, threads), head, checkpoint)
    scores, expected = inputs.measure(checkpoint, args.batch_size)
    rows = {CHECKPOINT: _row(scores, 1.0 if expected else None, checkpoint)}
    rows |= {name: _measure(inputs, side, args, expected) for name, side in sides.items() if side is not checkpoint}
    if not sides[ONNX].largest <= args.tolerance:
        raise InputError(
            f"the exported model is not the checkpoint: outputs differ by up to {sides[ONNX].largest:.2g}, allowed: "
            f"{args.tolerance:.2g} (--tolerance); nothing was written"
        )
    kept, tried = plain, []
    if args.format == "int8":
        tried = _try_int8(args, head, inputs, checkpoint, expected, plain, folder)
        kept, sides[INT8], rows[INT8] = tried[0]["file"], tried[0]["side"], tried[0]["row"]
        _check_score(args, inputs, rows[CHECKPOINT], rows[INT8])
    for side in sides.values():
        side.reference = None  # speed is that of the model alone
    speed = measure_speed(sides, inputs.batches(min(args.batch_size, args.speed_examples)), args)
    weights = [file.stat().st_size for file in Path(args.model_name_or_path).glob("model*.safetensors")]
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in stock.parameters())
    sizes = {CHECKPOINT: sum(weights) or parameters, ONNX: size_of(plain), INT8: size_of(kept)}
    for part in kept.parent.iterdir():
        part.rename(folder / part.name)
    for made in [path for path in folder.iterdir() if path.is_dir()]:
        shutil.rmtree(made)
    report: dict[str, Any] = {
        "model": args.model_name_or_path,
        "format": args.format,
        "head": head.name,
        "architecture": type(stock).__name__,
        "parameters": stock.num_parameters(),
        "max_seq_length": inputs.max_seq_length,
        "compared_on": {"source": inputs.source, "unit": inputs.unit, "number": inputs.num_examples},
        "score": inputs.score,
        "tolerance": args.tolerance,
        "max_score_drop": args.max_score_drop,
        "batch_size": args.batch_size,
        "versions": {name: version(name) for name in ("torch", "transformers", *PACKAGES)},
        **describe_graph(folder / MODEL_FILE),
        "rows": [
            {"name": name, "bytes": sizes.get(name), **row, **speed["sides"][name]} for name, row in rows.items()
        ],
        "speed": {"examples": speed["examples"], "tokens": speed["tokens"], "rounds": args.rounds},
        "threads": threads,
        "load_average": speed["load_average"],
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if tried:
        report["int8"] = describe_weights(folder / MODEL_FILE, tried[0]["settings"]) | {
            "tried_on": inputs.num_examples,
            "tried": [{"settings": each["settings"].name, "bytes": each["bytes"], **each["row"]} for each in tried],
        }
    stock.config.architectures = [type(stock).__name__]  # an old checkpoint names one of its two heads
    stock.config.save_pretrained(folder)
    inputs.tokenizer.save_pretrained(folder)
    shutil.copyfile(Path(__file__).parent / "examples" / f"{head.name}.py", folder / EXAMPLE_FILE)
    write_json(folder / JSON_FILE, report)
    (folder / TABLE_FILE).write_text(format_report(report), encoding="utf-8")
    return report


def _measure(inputs: Inputs, side: Side, args: ExportArguments, expected: Sequence[Any]) -> dict[str, Any]:
    scores, decisions = inputs.measure(side, args.batch_size)
    same = [one == other for one, other in zip(expected, decisions, strict=True)]
    return _row(scores, statistics.fmean(same) if same else None, side)


def _row(scores: Mapping[str, float], same: float | None, side: Side) -> dict[str, Any]:
    """JSON has no NaN and no infinity: what is not defined is null."""
    return {
        "scores": {name: _finite(value) for name, value in scores.items()},
        "largest_difference": _finite(side.largest),
        "mean_difference": _finite(side.mean),
        "same_predictions": same,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _try_int8(
    args: ExportArguments,
    head: Head,
    inputs: Inputs,
    checkpoint: Side,
    expected: Sequence[Any],
    plain: Path,
    folder: Path,
) -> list[dict[str, Any]]:
    """With and without the embeddings; first the smallest of those that score as well as the best."""
    tried: list[dict[str, Any]] = []
    for embeddings in (True, False) if args.embeddings is None else (args.embeddings,):
        settings = Int8Settings(args.per_channel is not False, embeddings, args.reduce_range)
        file = quantize(plain, folder / f"int8-{embeddings}", settings)
        side = Side(OnnxModel(file, torch.get_num_threads()), head, checkpoint)
        row = _measure(inputs, side, args, expected)
        score = row["scores"].get(inputs.score, 0.0)
        score = -math.inf if score is None else score
        logger.info("int8, %s: %s %.4g, mean difference %.1e", settings.name, inputs.score, score, side.mean)
        tried.append(
            {"settings": settings, "file": file, "side": side, "row": row, "score": score, "bytes": size_of(file)}
        )
    return rank_int8(tried, SCORE_MARGIN * inputs.point)


def rank_int8(tried: list[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
    """Put the smallest of those first whose score is no more than the margin below the best."""
    least = max(each["score"] for each in tried) - margin
    return sorted(tried, key=lambda each: (not each["score"] >= least, each["bytes"]))


def _check_score(args: ExportArguments, inputs: Inputs, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    # Texts of which no token was masked have no score.
    old, new = before["scores"].get(inputs.score), after["scores"].get(inputs.score)
    if old is not None and (new is None or (old - new) / inputs.point > args.max_score_drop):
        raise InputError(
            f"int8 loses too much: {inputs.score} is {new if new is None else format(new, '.4g')}, that of the checkpoint "
            f"{old:.4g}; allowed: {args.max_score_drop:g} points less (--max_score_drop); nothing was written"
        )


# Speed


def measure_speed(sides: Mapping[str, nn.Module], batches: Iterator[Batch], args: ExportArguments) -> dict[str, Any]:
    """Run all models over the same batches in turns, several rounds; in each another one begins.

    The batches are taken at equal distances, so that all lengths are there. A turn starts with one that is not counted.
    """
    everything = [{name: batch[name] for name in INPUTS if name in batch} for batch in batches]
    wanted = max(1, min(len(everything), args.speed_examples // args.batch_size))
    chosen = [everything[number * len(everything) // wanted] for number in range(wanted)]
    alone = _one_by_one(chosen)
    examples = sum(len(batch["input_ids"]) for batch in chosen)
    rounds: dict[str, dict[str, list[float]]] = {
        name: {"examples_per_second": [], "milliseconds_alone": []} for name in sides
    }
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    names = list(sides)
    for number in range(args.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds = sum(_times(sides[name], chosen))
            rounds[name]["examples_per_second"].append(examples / seconds)
            rounds[name]["milliseconds_alone"].append(1000 * statistics.median(_times(sides[name], alone)))
    rates = {name: statistics.median(found["examples_per_second"]) for name, found in rounds.items()}
    return {
        "sides": {
            name: {
                "examples_per_second": round(rates[name], 2),
                "ratio": round(rates[name] / rates[names[0]], 3),
                "milliseconds_alone": round(statistics.median(found["milliseconds_alone"]), 3),
                "rounds": found,
            }
            for name, found in rounds.items()
        },
        "examples": examples,
        "tokens": sum(int(batch["attention_mask"].sum()) for batch in chosen),
        "load_average": None if load is None else round(load, 2),
    }


def _times(side: nn.Module, batches: Sequence[Batch]) -> list[float]:
    side(**batches[0])
    seconds = []
    for batch in batches:
        start = time.perf_counter()
        side(**batch)
        seconds.append(time.perf_counter() - start)
    return seconds


def _one_by_one(batches: Sequence[Batch]) -> list[Batch]:
    """Single inputs without their pads, from all batches in turn."""
    alone: list[Batch] = []
    for number in range(max(len(batch["input_ids"]) for batch in batches)):
        for batch in batches:
            if number < len(batch["input_ids"]) and len(alone) < ALONE_EXAMPLES:
                length = int(batch["attention_mask"][number].sum(-1).max())
                alone.append(
                    {name: value[number : number + 1, ..., :length].contiguous() for name, value in batch.items()}
                )
    return alone


# The report


def format_report(report: Mapping[str, Any]) -> str:
    """export.json as Markdown."""
    compared, machine, load = report["compared_on"], report["machine"], report["load_average"]
    shapes = {
        side: [f"`{name}` ({', '.join(map(str, axes))})" for name, axes in report[side].items()]
        for side in ("inputs", "outputs")
    }
    versions, opset = (
        ", ".join(f"{name} {number}" for name, number in report[key].items()) for key in ("versions", "opset")
    )
    parts = [
        f"# {report['model']} as {report['format']}",
        f"`{report['architecture']}`, {report['parameters']:,} parameters, inputs of up to {report['max_seq_length']} tokens. "
        f"Compared on {compared['number']:,} {compared['unit']}: {compared['source']}.",
        format_table(report),
        f"Differences are those of the outputs at real tokens from the checkpoint's in float32, absolute; allowed for float32: "
        f"{report['tolerance']:g}. Speed: {report['speed']['examples']} inputs in batches of {report['batch_size']} "
        f"({report['speed']['tokens']:,} tokens), the median of {report['speed']['rounds']} turns of each side (least and most), "
        f"{report['threads']} threads for every side; alone: one input at a time. {machine['processor']}, {machine['cores']} cores, "
        f"{'' if load is None else f'load average {load} before it, '}{report['date']}.",
        *([_format_int8(report)] if "int8" in report else []),
        # What a program that loads the file has to know.
        f"`model.onnx`: int64 {', '.join(shapes['inputs'])}; float32 {', '.join(shapes['outputs'])}. Operators: {opset}; "
        f"IR {report['ir_version']}; made with {versions}. `example.py` runs it with onnxruntime and tokenizers alone.",
    ]
    return "\n\n".join(parts) + "\n"


def format_table(report: Mapping[str, Any]) -> str:
    """The rows as a Markdown table."""
    names = list(report["rows"][0]["scores"])
    columns = ["MB", *names, "largest difference", "mean difference", "same predictions", "a second", "", "alone, ms"]
    rows = []
    for row in report["rows"]:
        rates, same = row["rounds"]["examples_per_second"], row["same_predictions"]
        rows.append(
            [
                row["name"],
                "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}",
                *(_number(row["scores"].get(name), ".4f") for name in names),
                *(_number(row[name], ".1e") for name in ("largest_difference", "mean_difference")),
                "" if same is None else f"{100 * same:.2f} %",
                f"{row['examples_per_second']:,.1f} ({min(rates):,.1f} to {max(rates):,.1f})",
                f"{row['ratio']:.2f}x",
                f"{row['milliseconds_alone']:.2f}",
            ]
        )
    return _format_rows("", columns, rows)


def _format_rows(first: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in ([first, *columns], ["---", *["---:"] * len(columns)], *rows)
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _format_int8(report: Mapping[str, Any]) -> str:
    """How int8 was made, and what was tried."""
    int8 = report["int8"]
    total = int8["int8_weights"] + int8["float_weights"]
    scale = "a scale for each column of a weight" if int8["per_channel"] else "one scale for each weight"
    left = ", ".join(f"{count} {name}" for name, count in int8["float_operators"].items()) or "none"
    text = (
        f"int8: weights of {' and '.join(int8['operators'])}, {scale}{', 7 bits' if int8['reduce_range'] else ''}: "
        f"{int8['int8_weights']:,} of {total:,} numbers ({100 * int8['int8_weights'] / total:.1f} %). In float32 stay biases, "
        f"LayerNorm, softmax, the activation, {int8['float_products']} products of two activations, and the weights of: {left}."
    )
    if len(int8["tried"]) < 2:
        return text
    names = list(int8["tried"][0]["scores"])
    rows = [
        [
            each["settings"],
            f"{each['bytes'] / 1e6:.1f}",
            *(_number(each["scores"].get(name), ".4f") for name in names),
            _number(each["mean_difference"], ".1e"),
        ]
        for each in int8["tried"]
    ]
    return (
        f"{text} Of these the first was taken, by its score, its size and then its mean difference on {int8['tried_on']} "
        f"{report['compared_on']['unit']}:\n\n{_format_rows('tried', ['MB', *names, 'mean difference'], rows)}"
    )
