"""From a checkpoint to a folder that needs neither torch nor this project, with proof beside it that it says the same."""

from __future__ import annotations

import logging
import math
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from bert_recipes.errors import InputError
from bert_recipes.exporting.arguments import PACKAGES, ExportArguments
from bert_recipes.exporting.comparison import Comparison, RealInputs, compare
from bert_recipes.exporting.graphs import MODEL_FILE, describe_graph, export_graph, size_of
from bert_recipes.exporting.heads import Head, head_of, open_stock
from bert_recipes.exporting.quantization import Int8Settings, describe_weights, list_candidates, quantize
from bert_recipes.exporting.real_inputs import CheckedModel, config_of, load_checked_model
from bert_recipes.exporting.report import JSON_FILE, TABLE_FILE, format_report
from bert_recipes.exporting.runners import OnnxRunner, Runner, TorchRunner
from bert_recipes.exporting.speed import Speeds, take_turns
from bert_recipes.machine import describe_machine
from bert_recipes.memory import keep_freed_memory
from bert_recipes.model_folder import new_folder
from bert_recipes.precision import choose_precision
from bert_recipes.whole_files import write_json


logger = logging.getLogger(__name__)

# Examples on which the choices of int8 are compared before the best is measured on all; points of 100 that are no
# difference on so few, and sizes that are none.
CHOICE_EXAMPLES, SCORE_MARGIN, SIZE_MARGIN = 256, 0.5, 1.05
EXAMPLE_FILE = "example.py"
CHECKPOINT, CHECKPOINT_BF16, ONNX, INT8 = (
    "checkpoint, fp32",
    "checkpoint, bf16",
    "onnxruntime, fp32",
    "onnxruntime, int8",
)


@dataclass(frozen=True)
class Candidate:
    """An int8 model and how it did on some of the inputs.

    Attributes:
        settings: How it was made.
        file: model.onnx.
        found: Beside the checkpoint.
    """

    settings: Int8Settings
    file: Path
    found: Comparison


def export_checkpoint(args: ExportArguments) -> dict[str, Any]:
    """Export, compare, measure, and only then write the folder.

    Args:
        args: Passed `check_request`.

    Returns:
        What export.json holds.

    Raises:
        InputError: Nothing to compare on, a checkpoint that cannot be exported or whose outputs are not finite, a
            difference above the tolerance, int8 that loses too much, or a folder that cannot be written.
    """
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    keep_freed_memory()  # as the recipes run on a CPU
    config = config_of(args)
    head = head_of(config, args.model_name_or_path)
    stock = open_stock(args.model_name_or_path, head)  # first: what is not whole is refused before any data is read
    checked = load_checked_model(args, config, head)
    inputs = checked.inputs(args.max_eval_examples)
    logger.info("%s: compared on %d %s: %s", args.model_name_or_path, inputs.num_examples, inputs.unit, inputs.source)
    with new_folder(args.folder) as aside:
        report = _fill(args, head, checked, inputs, stock, aside)
    return report


def _fill(
    args: ExportArguments, head: Head, checked: CheckedModel, inputs: RealInputs, stock: PreTrainedModel, folder: Path
) -> dict[str, Any]:
    """Write everything into a folder that nobody sees yet; return the report."""
    threads = torch.get_num_threads()
    plain = _export_plain(stock, head, folder, args.opset)
    runners = _checkpoint_runners(checked.model, head)
    runners[ONNX] = OnnxRunner(plain, threads)
    tried: list[Candidate] = []
    sample = inputs if args.format == "onnx" else checked.inputs(min(CHOICE_EXAMPLES, args.max_eval_examples))
    if args.format == "int8":
        tried = _try_int8(args, head, sample, runners[CHECKPOINT], plain, folder)
        runners[INT8] = OnnxRunner(tried[0].file, threads)
    found = _compare(args, runners, head, inputs)
    speeds = take_turns(runners, inputs, args.batch_size, args.speed_examples, args.rounds)
    sizes = {CHECKPOINT: _checkpoint_bytes(args, stock), ONNX: size_of(plain)}
    if tried:
        sizes[INT8] = size_of(tried[0].file)
    sizes_tried = [size_of(each.file) for each in tried]
    _keep(folder, tried[0].file if tried else plain)
    report: dict[str, Any] = {
        **_describe(args, head, stock, inputs),
        **describe_graph(folder / MODEL_FILE),
        "rows": _rows(found, speeds, sizes),
        "speed": {"examples": speeds.examples, "tokens": speeds.tokens, "rounds": args.rounds},
        "threads": threads,
        "load_average": speeds.load_average,
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if tried:
        report["int8"] = {
            **describe_weights(folder / MODEL_FILE, tried[0].settings),
            "tried_on": sample.num_examples,
            "tried": [
                {"settings": each.settings.name, "bytes": sizes_tried[number], **_finite(each.found)}
                for number, each in enumerate(tried)
            ],
        }
    stock.config.architectures = [type(stock).__name__]  # an old checkpoint names one of its two heads
    stock.config.save_pretrained(folder)
    checked.tokenizer.save_pretrained(folder)
    shutil.copyfile(Path(__file__).parent / "examples" / f"{head.name}.py", folder / EXAMPLE_FILE)
    write_json(folder / JSON_FILE, report)
    (folder / TABLE_FILE).write_text(format_report(report), encoding="utf-8")
    return report


def _export_plain(stock: PreTrainedModel, head: Head, folder: Path, opset: int) -> Path:
    start = time.perf_counter()
    place = folder / "fp32"
    place.mkdir()
    file = export_graph(stock, head, place, opset)
    logger.info("exported: %.1f MB in %.1f s", size_of(file) / 1e6, time.perf_counter() - start)
    return file


def _checkpoint_runners(model: PreTrainedModel, head: Head) -> dict[str, Runner]:
    """The checkpoint in float32, and in what the recipes take on this machine where that is bfloat16."""
    runners: dict[str, Runner] = {CHECKPOINT: TorchRunner(model, head)}
    if choose_precision("auto", use_cpu=True).name == "bf16":
        runners[CHECKPOINT_BF16] = TorchRunner(model, head, "bf16")
    return runners


def _try_int8(
    args: ExportArguments, head: Head, inputs: RealInputs, reference: Runner, plain: Path, folder: Path
) -> list[Candidate]:
    """Every choice of int8 that is left open, the best first."""
    tried = []
    for number, settings in enumerate(
        list_candidates(args.per_channel, args.embeddings, reduce_range=args.reduce_range)
    ):
        place = folder / f"int8-{number}"
        place.mkdir()
        file = quantize(plain, place, settings)
        runner = OnnxRunner(file, torch.get_num_threads())
        _, others = compare(reference, {settings.name: runner}, head, inputs, args.batch_size)
        found = others[settings.name]
        tried.append(Candidate(settings, file, found))
        shown = "" if inputs.score is None else f"{inputs.score} {found.scores.get(inputs.score, math.nan):.4f}, "
        logger.info("int8, %s: %smean difference %.1e", settings.name, shown, found.mean)
    return _by_merit(tried, inputs)


def _by_merit(tried: list[Candidate], inputs: RealInputs) -> list[Candidate]:
    """The best first: of those that score as well as the best the smallest, of those of a size the nearest to the checkpoint."""

    def score(candidate: Candidate) -> float:
        value = candidate.found.scores.get(inputs.score, math.nan) if inputs.score else 0.0
        return -math.inf if math.isnan(value) else value

    best = max(map(score, tried))
    good = [each for each in tried if score(each) >= best - SCORE_MARGIN * inputs.points]
    smallest = min(size_of(each.file) for each in good)
    small = [each for each in good if size_of(each.file) <= SIZE_MARGIN * smallest]
    chosen = min(small, key=lambda each: each.found.mean)
    return [chosen, *sorted((each for each in tried if each is not chosen), key=score, reverse=True)]


def _compare(
    args: ExportArguments, runners: Mapping[str, Runner], head: Head, inputs: RealInputs
) -> dict[str, Comparison]:
    """Compare on all inputs, and refuse what is too far from the checkpoint."""
    others = {name: runner for name, runner in runners.items() if name != CHECKPOINT}
    own, found = compare(runners[CHECKPOINT], others, head, inputs, args.batch_size)
    largest = found[ONNX].largest
    if not largest <= args.tolerance:
        raise InputError(
            f"the exported model is not the checkpoint: outputs differ by up to {largest:.2g}, allowed: {args.tolerance:.2g} "
            "(--tolerance); nothing was written"
        )
    # Texts of which no token was masked have no score.
    if INT8 in found and inputs.score is not None and inputs.score in own.scores:
        before, after = own.scores[inputs.score], found[INT8].scores[inputs.score]
        lost = (before - after) / inputs.points
        if lost > args.max_score_drop or (math.isnan(after) and not math.isnan(before)):
            raise InputError(
                f"int8 loses too much: {inputs.score} is {after:.4g}, that of the checkpoint {before:.4g}; allowed: "
                f"{args.max_score_drop:g} points less (--max_score_drop); nothing was written"
            )
    return {CHECKPOINT: own, **found}


def _checkpoint_bytes(args: ExportArguments, stock: PreTrainedModel) -> int:
    files = list(Path(args.model_name_or_path).glob("model*.safetensors"))
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in stock.parameters())
    return sum(file.stat().st_size for file in files) or parameters


def _keep(folder: Path, file: Path) -> None:
    """Move the model to its place and take away what was made on the way."""
    for part in file.parent.iterdir():
        part.rename(folder / part.name)
    for place in list(folder.iterdir()):
        if place.is_dir():
            shutil.rmtree(place)


def _describe(args: ExportArguments, head: Head, stock: PreTrainedModel, inputs: RealInputs) -> dict[str, Any]:
    return {
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
    }


def _rows(found: Mapping[str, Comparison], speeds: Speeds, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    rates = {name: statistics.median(speed.examples_per_second) for name, speed in speeds.of.items()}
    return [
        {
            "name": name,
            "bytes": sizes.get(name),
            **_finite(comparison),
            "examples_per_second": round(rates[name], 2),
            "ratio": round(rates[name] / rates[CHECKPOINT], 3),
            "milliseconds_alone": round(statistics.median(speeds.of[name].milliseconds_alone), 3),
            "rounds": asdict(speeds.of[name]),
        }
        for name, comparison in found.items()
    ]


def _finite(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON, which has no NaN and no infinity: what is not defined is null."""
    figures = {"largest_difference": found.largest, "mean_difference": found.mean, "same_predictions": found.same}
    return {"scores": _defined(found.scores), **_defined(figures)}


def _defined(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None or not math.isfinite(value) else value for name, value in figures.items()}
