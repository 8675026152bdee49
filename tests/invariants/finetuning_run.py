"""Short fine-tuning runs of all four kinds that record every gradient; alone or under torchrun.

torchrun --nproc-per-node 2 tests/invariants/finetuning_run.py '{"output_dir": ..., "kinds": [...],
...}'
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from small_run import DEFAULTS, Recorder
from small_stores import make_tokenizer
from transformers import BertConfig, set_seed
from two_processes import end_processes, save_gradients

from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.finetuning.checkpoints import HEADS
from bert_recipes.finetuning.run import make_kind
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import (
    Answer,
    ChoiceExample,
    QuestionExample,
    Split,
    TaggedExample,
    TextExample,
)
from bert_recipes.training.launch import check_launch


# One task of each kind.
TASKS = {
    "sequence_classification": "mrpc",
    "token_classification": "conll2003",
    "question_answering": "squad",
    "multiple_choice": "swag",
}


class Words:
    """Texts of words that only the seed decides."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def some(self, least: int, most: int) -> list[str]:
        return [f"w{number}" for number in self.rng.integers(0, 90, self.rng.integers(least, most))]

    def example(self, kind: str, number: int) -> Any:
        if kind == "sequence_classification":
            first, second = " ".join(self.some(2, 25)), " ".join(self.some(2, 12))
            return TextExample(
                idx=number, text=first, text_pair=second, label=int(self.rng.integers(2))
            )
        if kind == "token_classification":
            tokens = self.some(1, 14)
            labels = tuple(self.rng.integers(0, 2, len(tokens)).tolist())
            return TaggedExample(
                idx=number, tokens=tuple(tokens), labels=labels, document=number // 3
            )
        if kind == "multiple_choice":
            choices = tuple(" ".join(self.some(1, 14)) for _ in range(4))
            return ChoiceExample(
                idx=number,
                context=" ".join(self.some(2, 14)),
                choices=choices,
                label=int(self.rng.integers(4)),
            )
        words = self.some(6, 70)
        first = int(self.rng.integers(0, len(words) - 2))
        start = len(" ".join([*words[:first], ""]))
        answer = Answer(text=" ".join(words[first : first + 2]), answer_start=start)
        question = " ".join(self.some(2, 7))
        return QuestionExample(
            idx=f"q{number}", question=question, context=" ".join(words), answers=(answer,)
        )


def make_split(kind: str, name: str, rows: int, seed: int) -> Split:
    words = Words(seed)
    examples = [words.example(kind, number) for number in range(rows)]
    return Split(name=name, examples=examples, source="made up", num_rows=rows)


def make_model(kind: str, vocab_size: int, num_labels: int, dropout: float) -> Any:
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.2,  # far from zero, so that no two predictions are nearly equal
        num_labels=num_labels,
    )
    set_seed(0)
    return getattr(transformers, f"Bert{HEADS[kind]}")(config)


def finetuning_run(
    kind: str,
    *,
    output_dir: str,
    resume_from: str | None = None,
    dropout: float = 0.0,
    freeze_encoder: bool = False,
    class_weights: Any = None,
    train: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Measure the untrained model, then train a tiny model for a few steps.

    Returns:
        metrics and predictions before training, gradients a step, logged history, the first and the
        final weights.
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    batch = {"global_train_batch_size": 16, "per_device_train_batch_size": 16}
    args = FineTuningArguments(output_dir=output_dir, **(DEFAULTS | batch | {"seed": 7} | settings))
    check_launch(args)
    folder_of_process = folder / f"process-{os.environ.get('RANK', '0')}"
    folder_of_process.mkdir(exist_ok=True)
    tokenizer = make_tokenizer(folder_of_process, [f"w{number}" for number in range(90)])
    task = get_task(TASKS[kind])
    task_args = TaskArguments(
        task=task.name,
        max_seq_length=48,
        doc_stride=16,
        max_query_length=8,
        class_weights=class_weights,
    )
    encoder = make_kind(task, tokenizer, task_args)
    model = make_model(kind, len(tokenizer), len(task.labels) or 2, dropout)
    model.base_model.requires_grad_(not freeze_encoder)
    recorder = Recorder(model)
    trainer = FineTuningTrainer(
        model,
        args,
        encoder,
        train_dataset=encoder.encode(make_split(kind, "train", 40, 1), for_training=True),
        eval_splits={"": encoder.encode(make_split(kind, "validation", 27, 2), for_training=False)},
        freeze_encoder=freeze_encoder,
        processing_class=tokenizer,
        callbacks=[recorder],
    )
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    metrics = trainer.evaluate()
    predictions = [
        (item.idx, item.value, item.probabilities) for item in trainer.predictions["validation"]
    ]
    if train:
        trainer.train(resume_from_checkpoint=resume_from)
    return {
        "metrics": metrics,
        "predictions": predictions,
        "gradients": recorder.gradients,
        "history": trainer.state.log_history,
        "first_weights": first,
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
        "trainer": trainer,
    }


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    folder = Path(settings.pop("output_dir"))
    for kind in settings.pop("kinds"):
        result = finetuning_run(kind, output_dir=str(folder / kind), **settings)
        if os.environ.get("RANK", "0") == "0":
            save_gradients(result["gradients"], folder / kind / "gradients.safetensors")
            logs = [result["history"], result["metrics"], result["predictions"]]
            (folder / kind / "logs.json").write_text(json.dumps(logs))
    del result
    end_processes()
