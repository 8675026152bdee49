"""A short training run that records what it trained on and every gradient; runs alone or under
torchrun.

torchrun --nproc-per-node 2 tests/invariants/small_run.py '{"store": ..., "output_dir": ..., ...}'
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import TrainerCallback
from two_processes import end_processes, save_gradients

from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PreTrainingArguments,
)
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.distillation import DistillationTrainer, make_student
from bert_recipes.training.electra import ElectraTrainer
from bert_recipes.training.launch import check_launch
from bert_recipes.training.pretraining import load_data, load_model


DDP_SETTINGS = ("find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers")


class Recorder(TrainerCallback):
    """Keeps the gradient of every optimizer step; clipping is off by default."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.gradients: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        # A step that is left out has none.
        parameters = self.model.named_parameters()
        self.gradients.append(
            {name: p.grad.clone() for name, p in parameters if p.grad is not None}
        )


class Recording:
    """Keeps the rows of every optimizer step."""

    rows: list[tuple[int, tuple[int, ...], tuple[int, ...], int]]

    def training_step(
        self: Any, model: Any, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        for row in range(len(inputs["input_ids"])):
            length = int(inputs["attention_mask"][row].sum())
            ids = tuple(inputs["input_ids"][row, :length].tolist())
            labels = tuple(inputs["labels"][row, :length].tolist())
            pair_label = -100
            if "next_sentence_label" in inputs:
                pair_label = int(inputs["next_sentence_label"][row])
            self.rows.append((self.state.global_step, ids, labels, pair_label))
        return super().training_step(model, inputs, *args, **kwargs)


class RecordingTrainer(Recording, BertTrainer):
    """Of all objectives but ELECTRA's."""


class RecordingElectraTrainer(Recording, ElectraTrainer):
    """ELECTRA's."""


class RecordingDistillationTrainer(Recording, DistillationTrainer):
    """DistilBERT's."""


def make_distilbert(
    objective_settings: dict[str, Any], vocab_size: int, seed: int, dropout: float
) -> tuple[Any, Any]:
    """Return a student of a random BERT, and what makes its trainer."""
    names = ("temperature", "alpha_ce", "alpha_mlm", "alpha_cos")
    settings = DistillationArguments(
        teacher="random", **{name: objective_settings[name] for name in names}
    )
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocab_size, "dropout": dropout, "initializer_range": 0.2}
    config = pretraining_config("mini", **sizes)
    teacher = MEMBERS["bert"](config).eval()
    return make_student(teacher, settings, seed), partial(
        RecordingDistillationTrainer, teacher=teacher, settings=settings
    )


DEFAULTS = {
    "max_steps": 3,
    "logging_steps": 1,
    "warmup_steps": 2,
    "max_grad_norm": 0.0,
    "precision": "fp32",
    "save_strategy": "no",
    "disable_tqdm": True,
    "learning_rate": 1e-3,
    "use_cpu": True,
}


def values_for(settings_class: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass."""
    names = {field.name for field in fields(settings_class)}
    return {name: value for name, value in values.items() if name in names}


def small_run(
    *,
    store: str,
    output_dir: str,
    resume_from: str | None = None,
    dropout: float = 0.0,
    objective: str = "bert",
    inputs: dict[str, Any] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **settings: Any,
) -> dict[str, Any]:
    """Train the tiny size for a few steps.

    Returns:
        rows of all steps of this process, gradients a step, logged history, final weights, held-out
        metrics, what DDP was given and the seed of this process' generator, the Trainer.
    """
    values = ModelArguments.reconcile({"objective": objective, **(inputs or {})}, (), {})
    data_args = DataArguments(
        store=store, max_seq_length=48, max_eval_pairs=27, **values_for(DataArguments, values)
    )
    args = PreTrainingArguments(output_dir=output_dir, **(DEFAULTS | settings))
    check_launch(args)
    data = load_data(data_args, args.seed)
    trainer_class: Any = RecordingElectraTrainer if objective == "electra" else RecordingTrainer
    if objective == "distilbert":
        vocab_size = len(data.tokenizer)
        model, trainer_class = make_distilbert(values, vocab_size, args.seed, dropout)
    else:
        model_values = values_for(ModelArguments, values) | {"dropout": dropout}
        model_args = ModelArguments(**{"size": "tiny"} | model_values)
        model = load_model(model_args, data.tokenizer, data.train.max_seq_length, args.seed)
    recorder = Recorder(model)
    trainer = trainer_class(
        model,
        args,
        data.collator,
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=data.tokenizer,
        unigram_counts=data.unigram_counts,
        max_eval_pairs=data_args.max_eval_pairs,
        callbacks=[recorder, *callbacks],
    )
    trainer.rows = []
    for callback in callbacks:
        callback.trainer = trainer
    trainer.train(resume_from_checkpoint=resume_from)
    return {
        "rows": trainer.rows,
        "gradients": recorder.gradients,
        "history": trainer.state.log_history,
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
        "metrics": trainer.evaluate(),
        "settings": {name: getattr(trainer.model_wrapped, name, None) for name in DDP_SETTINGS}
        | {"seed": torch.initial_seed()},
        "trainer": trainer,
    }


def predicted_shares(rows: Sequence[Any]) -> list[float]:
    """Return the share of the tokens that is predicted in each step, of the rows of a run."""
    labels_of_steps: dict[int, list[int]] = {}
    for step, _, labels, _ in rows:
        labels_of_steps.setdefault(step, []).extend(labels)
    shares = []
    for labels in labels_of_steps.values():
        num_predicted = sum(label != -100 for label in labels)
        shares.append(num_predicted / len(labels))
    return shares


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    result = small_run(**settings)
    rank = int(os.environ.get("RANK", "0"))
    folder = Path(settings["output_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rows-{rank}.json").write_text(json.dumps(result["rows"]))
    (folder / f"settings-{rank}.json").write_text(json.dumps(result["settings"]))
    if rank == 0:
        save_gradients(result["gradients"], folder / "gradients.safetensors")
        save_file(result["weights"], folder / "weights.safetensors")
        (folder / "logs.json").write_text(json.dumps([result["history"], result["metrics"]]))
    del result
    end_processes()
