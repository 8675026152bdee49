"""The objectives of pre-training as rows: data, model, Trainer and defaults."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Objective:
    """The model and the Trainer of an objective, and the settings that it changes.

    `ModelArguments.reconcile` has the precedence of these settings.
    """

    model: str  # a key of checkpoints.MEMBERS
    # Module of this package, and class of the Trainer in it.
    trainer: str = "bert_trainer.BertTrainer"
    copies_teacher: bool = False  # the model begins with layers of its teacher
    teacher_settings: tuple[str, ...] = ()  # fields of DistillationArguments; none: no teacher
    settings: Mapping[str, Any] = field(default_factory=dict)
    new_model_config: Mapping[str, Any] = field(default_factory=dict)
    # Settings of the original for Adam, not for LAMB or Muon. With `model_name_or_path` a file wins
    # over them.
    adam_settings: Mapping[str, Any] = field(default_factory=dict)
    # By the size of the model, over `adam_settings`.
    adam_settings_of_sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def trainer_class(self, teacher: Any = None, settings: Any = None) -> Callable[..., Any]:
        """Import the class of the Trainer, and bind a teacher and its settings where it has one."""
        module, name = self.trainer.split(".")
        trainer_class = getattr(importlib.import_module(f"bert_recipes.training.{module}"), name)
        if teacher is None:
            return trainer_class
        return partial(trainer_class, teacher=teacher, settings=settings)

    @property
    def model_type(self) -> str:
        """Return the model type of config.json."""
        return self.model.partition("_")[0]


OBJECTIVES = {
    # Devlin et al. 2019, section 3.1: masked LM and next sentence.
    "bert": Objective("bert"),
    # The same inputs, or others of `input_format`, without a loss for pairs.
    "mlm": Objective("bert_mlm", settings={"pair_label": "none"}),
    # Devlin et al. 2019, section 5.1, "LTR & No NSP": every token is predicted from earlier ones.
    "ltr": Objective(
        "bert_ltr",
        settings={"pair_label": "none", "selection": "causal"},
        new_model_config={"is_decoder": True, "use_cache": False},
    ),
    # Liu et al. 2019, section 4; fairseq examples/roberta/config/pretraining/base.yaml and
    # models/roberta/model.py.
    "roberta": Objective(
        "roberta",
        settings={
            "input_format": "full_sentences",
            "pair_label": "none",
            "selection": "fairseq",
            "hidden_act": "gelu",
            "weight_init": "normal",
        },
    ),
    # Lan et al. 2020, sections 3.1 and 4.1: masked n-grams and sentence order; without dropout as
    # version 2.
    "albert": Objective(
        "albert", settings={"pair_label": "order", "selection": "ngrams", "dropout": 0.0}
    ),
    # Clark et al. 2020; google-research/electra configure_pretraining.py,
    # pretrain/pretrain_helpers.py `mask` and util/training_utils.py.
    "electra": Objective(
        "electra",
        trainer="electra.ElectraTrainer",
        settings={
            "input_format": "electra",
            "pair_label": "none",
            "mask_rate": 0.85,
            "keep_rate": 0.15,
            "random_rate": 0.0,
            "hidden_act": "gelu",
        },
        adam_settings={"learning_rate": 5e-4},
        adam_settings_of_sizes={"base": {"learning_rate": 2e-4}, "large": {"learning_rate": 2e-4}},
    ),
    # Sanh et al. 2019; huggingface/transformers-research-projects distillation/README.md and
    # train.py.
    "distilbert": Objective(
        "distilbert",
        trainer="distillation.DistillationTrainer",
        copies_teacher=True,
        teacher_settings=(
            "teacher",
            "student_layers",
            "start_from_teacher",
            "fold_segments",
            "temperature",
            "alpha_ce",
            "alpha_mlm",
            "alpha_cos",
        ),
        settings={
            "pair_label": "none",
            "temperature": 2.0,
            "alpha_ce": 5.0,
            "alpha_mlm": 2.0,
            "alpha_cos": 1.0,
        },
        adam_settings={
            "optimizer": "adamw",
            "learning_rate": 5e-4,
            "warmup_steps": 0.05,
            "adam_beta2": 0.98,
            "weight_decay": 0.0,
            "max_grad_norm": 5.0,
        },
    ),
    # Jiao et al. 2020, section 3.2, general distillation, and TinyBERT/general_distill.py; its
    # released data has no [MASK].
    "tinybert": Objective(
        "bert_mlm",
        trainer="tinybert.TinyBertTrainer",
        teacher_settings=("teacher", "alpha_attn", "alpha_hidn", "alpha_embd"),
        settings={
            "pair_label": "none",
            "selection": "none",
            "alpha_attn": 1.0,
            "alpha_hidn": 1.0,
            "alpha_embd": 1.0,
        },
        adam_settings={"learning_rate": 5e-5, "warmup_steps": 0.1},
    ),
}
