r"""Measure a pre-training checkpoint on held-out text of a store, or a fine-tuned one on a task.

    python recipes/evaluate_checkpoint.py --model_name_or_path runs/quickstart \
        --store data/quickstart/store
    python recipes/evaluate_checkpoint.py --model_name_or_path runs/mrpc --task mrpc --data_dir DATA
    python recipes/evaluate_checkpoint.py --model_name_or_path runs/quickstart --probe_bias true

Held-out inputs of a store are made by the fields of recipes/pretrain.py, which are all taken
(`--max_seq_length 512`). With --task or --task_file the fields are those of recipes/finetune.py,
and inputs are cut as they were when the checkpoint was trained. The probe (docs/model_card.md)
needs no data; it writes bias_probe.json into the checkpoint's folder.
"""

import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bert_recipes.config import parse_arguments, read_text
from bert_recipes.errors import InputError, run_cli, saving
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    ScoringArguments,
    names_a_task,
    read_early,
)
from bert_recipes.settings import option
from bert_recipes.training.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.training.speed import describe_machine


logger = logging.getLogger("evaluate_checkpoint")


@dataclass
class EvaluateArguments:
    """Choose what is measured and where the metrics go."""

    training: ClassVar[bool] = False

    results_file: str | None = option(
        None, "also write the metrics to this JSON file", is_common=True
    )
    probe_bias: bool = option(
        False,
        "measure pronouns of occupations instead, for the model card; needs no data",
        is_common=True,
    )

    def __post_init__(self) -> None:
        if self.results_file and Path(self.results_file).is_dir():
            raise InputError(f"results_file {self.results_file} is a folder; give a file in it")


def asks_for_probe(argv: Sequence[str]) -> bool:
    """Return whether `probe_bias` is true; what is no truth value is left to the parser."""
    text = str(read_early(argv, "probe_bias").get("probe_bias", "false"))
    try:
        return text == "" or read_text(bool, text)
    except ValueError:
        return False


def main() -> None:
    """Parse; make no folder in the working directory for a Trainer that only evaluates."""
    on_task = names_a_task(sys.argv[1:])
    types: tuple[type, ...] = (ModelArguments, DataArguments, PreTrainingArguments)
    if on_task:
        types = (ScoringArguments, FineTuningArguments)
    elif asks_for_probe(sys.argv[1:]):
        types = (ModelArguments, PreTrainingArguments)  # a probe needs no data
    evaluate, *settings, args = parse_arguments(EvaluateArguments, *types)
    # Imported only now, for it takes seconds.
    from bert_recipes.finetuning.run import score_checkpoint
    from bert_recipes.training.launch import check_launch, start_logging
    from bert_recipes.training.run import results_text

    if args.push_to_hub:
        raise InputError(
            "push_to_hub has no effect here; recipes/push_to_hub.py pushes a finished run with "
            "its metrics"
        )
    start_logging(args)
    check_launch(args, trains=False)
    if evaluate.probe_bias:
        probe_bias(settings[0].model_name_or_path, evaluate.results_file)
        return
    if evaluate.results_file:
        with saving(evaluate.results_file):
            Path(evaluate.results_file).parent.mkdir(parents=True, exist_ok=True)
    measure: Callable[..., dict[str, Any]] = score_checkpoint if on_task else measure_pretraining
    with tempfile.TemporaryDirectory() as folder:
        if not args.has_output_dir:
            args.output_dir = folder
        results = measure(*settings, args)
    if args.process_index == 0:
        if evaluate.results_file:
            with saving(evaluate.results_file):
                Path(evaluate.results_file).write_text(results_text(results), encoding="utf-8")
        results.pop("jackknife", None)  # lists of numbers, for comparisons
        print(results_text(results), end="")


def probe_bias(checkpoint: str | None, results_file: str | None) -> None:
    """Probe, print, write."""
    from bert_recipes.reports.bias_probe import probe_checkpoint, write_probe

    if checkpoint is None:
        raise InputError("model_name_or_path is missing: give the checkpoint to probe")
    measured = probe_checkpoint(checkpoint)
    print(f"{'occupation':16}{'P(she)':>8}{'P(he) + P(she)':>16}")
    for row in measured["rows"]:
        print(f"{row['occupation']:16}{row['p_she']:8.2f}{row['mass']:16.2%}")
    file = None if results_file is None else Path(results_file)
    if file is not None or Path(checkpoint).is_dir():
        print(write_probe(Path(checkpoint), measured, file))


def measure_pretraining(
    model_args: ModelArguments, data_args: DataArguments, args: PreTrainingArguments
) -> dict[str, Any]:
    """Losses and accuracies of both pre-training tasks on held-out pairs."""
    from bert_recipes.training.objectives import OBJECTIVES
    from bert_recipes.training.pretraining import (
        check_direction,
        load_data,
        load_model,
        make_trainer,
        warn_of_other_inputs,
    )

    if model_args.model_name_or_path is None:
        raise InputError(
            "model_name_or_path is missing: give the folder (or Hub name) of the checkpoint to "
            "evaluate"
        )
    data = load_data(data_args, args.seed)
    if data.validation is None:
        raise InputError(
            f"{data_args.store or data_args.train_file} has no held-out part to measure on"
        )
    model = load_model(model_args, data.tokenizer, data.max_seq_length, args.seed, needs_head=True)
    check_direction(model, data)
    warn_of_other_inputs(model_args.model_name_or_path, model.config.model_type, data_args)
    logger.info(
        "inputs of up to %d tokens, at most %d pairs", data.max_seq_length, data_args.max_eval_pairs
    )
    # A generator of ELECTRA by itself is a masked LM.
    has_generator = hasattr(model, "generator")
    objective = OBJECTIVES["electra" if has_generator else "bert"]
    trainer = make_trainer(model, args, data, data_args.max_eval_pairs, objective.trainer_class())
    results = trainer.measure_all()
    results["model"] = model_args.model_name_or_path
    results["machine"] = describe_machine(args.device)
    return results


if __name__ == "__main__":
    run_cli(main)
