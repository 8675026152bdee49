"""Export a checkpoint to a folder that needs neither torch nor this project."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from bert_recipes.checkpointing import find_file
from bert_recipes.errors import InputError
from bert_recipes.exporting.arguments import PACKAGES, ExportArguments
from bert_recipes.exporting.onnx import (
    MODEL_FILE,
    Head,
    OnnxModel,
    export_graph,
    head_of,
    open_stock,
    quantize,
    size_of,
)
from bert_recipes.files import atomic_dir, replace_nonfinite, write_json
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    ScoringArguments,
    check_access,
    read_model_config,
    read_trained_settings,
)
from bert_recipes.finetuning.checkpoints import open_tokenizer
from bert_recipes.finetuning.run import prepare_run
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.models.sizes import inputs_of, num_positions
from bert_recipes.run_folder import TASK_FILE
from bert_recipes.tasks.task import figure_names, with_prefix
from bert_recipes.tokenization.loading import check_vocabulary


EXAMPLE_FILE = "example.py"
REPORT_FILE = "export.json"
# Inputs on which the outputs are compared: their lengths, beside the longest, and how many of each.
LENGTHS = (1, 8, 64)
INPUTS_OF_A_LENGTH = 4
# The longest input that is compared: attention scores of longer ones take gigabytes.
MAX_COMPARED_LENGTH = 2048

Batch = Mapping[str, torch.Tensor]


def export_checkpoint(args: ExportArguments) -> dict[str, Any]:
    """Export, compare, and only then write the folder; return what export.json holds."""
    name = args.model_name_or_path
    head = head_of(read_model_config(name), name)
    model = open_stock(name, head)
    tokenizer = open_tokenizer(name)
    check_vocabulary(name, model.config.vocab_size, tokenizer)
    length = num_positions(model.config, 512)

    with ExitStack() as stack:
        work_dir = stack.enter_context(tempfile.TemporaryDirectory())
        # Outside of `atomic_dir`, which takes an OSError for one of its folder.
        trainer = open_task(args, work_dir) if args.is_scored else None
        folder = stack.enter_context(atomic_dir(args.folder))
        difference = write_model(args, head, model, folder)
        file = folder / MODEL_FILE
        scores = None
        if trainer is not None:
            scores = compare_scores(trainer, OnnxModel(file))
        report = {
            "model": name,
            "format": args.format,
            "architecture": type(model).__name__,
            "max_seq_length": read_trained_settings(name).get("max_seq_length", length),
            "opset": args.opset,
            "bytes": size_of(file),
            "largest_difference": difference,
            "scores": scores,
            "versions": {package: version(package) for package in ("torch", *PACKAGES)},
            "date": time.strftime("%Y-%m-%d"),
        }
        # An old checkpoint names one of its two heads.
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        shutil.copyfile(Path(__file__).parent / EXAMPLE_FILE, folder / EXAMPLE_FILE)
        write_json(folder / REPORT_FILE, replace_nonfinite(report))
    return report


def write_model(
    args: ExportArguments,
    head: Head,
    model: PreTrainedModel,
    folder: Path,
) -> float:
    """Write model.onnx into a folder; return how far its outputs are from the checkpoint's.

    A float32 model that differs too much is refused.
    """
    with tempfile.TemporaryDirectory() as work_dir:
        float_folder = folder if args.format == "onnx" else Path(work_dir)
        file = export_graph(model, head, float_folder, args.opset)
        difference = largest_difference(model, OnnxModel(file), head)
        # Also where an output is not a number.
        if not difference <= args.tolerance:
            raise InputError(
                "the exported model is not the checkpoint: outputs differ by up to "
                f"{difference:.2g}, allowed: {args.tolerance:.2g} (--tolerance); nothing was "
                "written"
            )
        if args.format == "onnx":
            return difference
        file = quantize(file, folder, reduce_range=args.reduce_range)
        return largest_difference(model, OnnxModel(file), head)


# The outputs


@torch.no_grad()
def largest_difference(model: PreTrainedModel, exported: nn.Module, head: Head) -> float:
    """Return the largest absolute difference of an output, over random inputs of several lengths.

    What is put out at pads means nothing, and is left out.
    """
    differences = []
    for batch in random_batches(model.config, head):
        inputs = {name: batch[name] for name in inputs_of(model)}
        expected = model(**inputs)
        output = exported(**inputs)
        for name, is_by_token in head.outputs.items():
            difference = (expected[name] - output[name]).abs()
            if is_by_token:
                difference = difference[batch["attention_mask"].bool()]
            differences.append(difference.max())
    return torch.stack(differences).max().item()


def random_batches(config: PretrainedConfig, head: Head) -> Iterator[Batch]:
    """Yield batches of random pieces in both segments with pads behind them, the same each time."""
    generator = torch.Generator().manual_seed(0)
    pad = config.pad_token_id or 0
    segments = max(1, getattr(config, "type_vocab_size", 1))  # DeBERTa has 0
    positions = min(num_positions(config, 512), MAX_COMPARED_LENGTH)

    for length in sorted({*LENGTHS, positions}):
        if length > positions:
            continue
        sizes = {
            "batch": INPUTS_OF_A_LENGTH,
            "choices": 3,
            "sequence": length,
        }
        shape = [sizes[axis] for axis in head.input_axes()]
        # Any piece but the pad: from its id on they are one higher.
        ids = torch.randint(0, config.vocab_size - 1, shape, generator=generator)
        ids += ids >= pad
        types = torch.randint(0, segments, shape, generator=generator)
        lengths = torch.randint(1, length + 1, shape[:-1], generator=generator)
        mask = (torch.arange(length) < lengths[..., None]).long()
        yield {
            "input_ids": ids.where(mask == 1, pad),
            "attention_mask": mask,
            "token_type_ids": types * mask,
        }


# The score


def open_task(args: ExportArguments, work_dir: str) -> FineTuningTrainer:
    """Return what scores the checkpoint on a task's validation rows, by default the run's task."""
    name = args.model_name_or_path
    task_file = args.task_file
    if args.task is None and task_file is None:
        file = find_file(name, TASK_FILE)
        if file is None:
            raise InputError(f"{name} has no {TASK_FILE}; give --task NAME or --task_file FILE")
        task_file = str(file)
    settings = ScoringArguments(
        model_name_or_path=name,
        task=args.task,
        task_file=task_file,
        data_dir=args.data_dir,
        max_eval_examples=args.max_eval_examples,
    )
    task = settings.loaded_task
    if not task.validation_splits:
        raise InputError(f"task {task.name} has no validation split to score a model on")
    check_access(settings, for_training=False)
    run_arguments = FineTuningArguments(
        output_dir=work_dir,
        per_device_eval_batch_size=args.batch_size,
        precision="fp32",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    return prepare_run(settings, run_arguments, for_training=False).trainer


def compare_scores(trainer: FineTuningTrainer, exported: nn.Module) -> dict[str, Any]:
    """Return the metrics of the checkpoint and of the exported model, and what is lost."""
    before, examples = score_model(trainer)
    trainer.model = exported
    after, _ = score_model(trainer)
    return {
        "examples": examples,
        "checkpoint": before,
        "exported": after,
        # A type of entities that neither has nor finds has no score.
        "lost": {name: before[name] - after[name] for name in before if name in after},
    }


def score_model(trainer: FineTuningTrainer) -> tuple[dict[str, float], dict[str, int]]:
    """Return metrics of the model on the validation splits, and the number of rows of each."""
    task = trainer.kind.task
    scores = {}
    examples = {}
    for prefix, encoded in trainer.eval_splits.items():
        predictions = trainer.predict_split(encoded)
        values = trainer.kind.score(encoded.split.examples, predictions)
        # The values hold counts and thresholds too, which no model can lose.
        for name in figure_names(task.metrics, [encoded.split.name], task.labels):
            if name in values:
                scores[with_prefix(prefix, name)] = float(values[name])
                examples[with_prefix(prefix, name)] = len(encoded.split.examples)
    return scores, examples


def summarize(report: Mapping[str, Any]) -> str:
    """Return what the console shows of an export: its size, its difference, its score."""
    lines = [
        f"model.onnx ({report['format']}): {report['bytes'] / 1e6:.1f} MB; its outputs differ from "
        f"the checkpoint's by up to {report['largest_difference']:.1e}"
    ]
    scores = report["scores"]
    if scores is None:
        return f"{lines[0]}; its score was not measured: give --data_dir DATA, or --task NAME"

    for name, lost in scores["lost"].items():
        lines.append(
            f"{name} {scores['exported'][name]:.4f}, the checkpoint's "
            f"{scores['checkpoint'][name]:.4f}: {lost:.4f} lost, on "
            f"{scores['examples'][name]:,} validation rows"
        )
    return "\n".join(lines)
