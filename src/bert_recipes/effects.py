"""Which settings have an effect only under a condition: one table for all scripts, and those of a run that have none."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class When:
    """A setting, or a property of a dataclass of settings, with whose values others have an effect.

    Without values any that is set will do: not None, False, 0, an empty list or "no". `is_unset`: only where it is not set.
    """

    name: str
    values: tuple[Any, ...] = ()
    is_unset: bool = False

    def holds(self, value: Any) -> bool:
        """Tell whether the other settings have an effect with this value."""
        if self.values:
            items = value if isinstance(value, list) else [value]
            return any(item in self.values for item in items)
        is_set = value not in (None, False, 0, [], "no")
        return is_set != self.is_unset

    def describe(self, value: Any, *, is_setting: bool) -> str:
        """Say what is needed, and what there is instead."""
        name = f"--{self.name}" if is_setting else self.name.replace("_", " ")
        if self.is_unset:
            return f"only without {name}"
        if not self.values:
            return f"only with {name}"
        return f"only with {name} {' or '.join(map(_as_text, self.values))}, not {_as_text(value)}"


_ALWAYS_IGNORED: tuple[When, ...] = ()
_FINETUNING = When("run_kind", ("fine-tuning",))
_QUESTIONS = When("task_kind", ("question_answering",))
_MASKS = When("selection", ("count", "bernoulli", "fairseq", "ngrams", "spans"))
_NO_INSTANCES = When("train_file", is_unset=True)
_TRAINS = When("training")

# Settings -> when they have an effect: with one of the conditions. Those on what a script does not have do not count for it. A
# setting that stands in several rows needs all of them.
EFFECTS: tuple[tuple[Sequence[str], Sequence[When]], ...] = (
    # The Trainer's
    (["save_steps"], [When("save_strategy", ("steps",))]),
    (["save_total_limit"], [When("save_strategy")]),
    (["eval_steps"], [When("eval_strategy", ("steps",))]),
    (["eval_delay", "do_eval", "metric_for_best_model", "greater_is_better"], [When("eval_strategy")]),
    (["logging_steps"], [When("logging_strategy", ("steps",)), When("eval_strategy", ("steps",))]),
    (["num_train_epochs"], [When("max_steps", (-1,))]),
    (["lr_scheduler_type", "lr_scheduler_kwargs"], [When("schedule", ("trainer",))]),
    (["schedule_power"], [When("schedule", ("bert_linear",))]),
    (["optim", "optim_args", "optim_target_modules"], [When("optimizer", ("trainer",))]),
    (["muon_learning_rate"], [When("optimizer", ("muon",))]),
    (["gradient_checkpointing_kwargs"], [When("gradient_checkpointing", (True,))]),
    (["activation_checkpointing_kwargs"], [When("activation_checkpointing", (True,))]),
    (["liger_kernel_config"], [When("use_liger_kernel", (True,))]),
    (["fsdp_config"], [When("fsdp")]),
    (["run_name"], [When("report_to")]),
    (
        ["project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"],
        [When("report_to", ("trackio",))],
    ),
    (["hub_model_id", "hub_revision", "hub_strategy", "hub_always_push"], [When("push_to_hub", (True,))]),
    (["hub_overwrite", "hub_tags", "hub_private_repo"], [When("push_to_hub", (True,))]),
    (["ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"], [When("several_processes")]),
    # The order of the data, the loss and the evaluation are this project's own.
    (["label_smoothing_factor", "label_names", "length_column_name", "do_train"], _ALWAYS_IGNORED),
    (["average_tokens_across_devices", "save_on_each_node", "dataloader_drop_last"], _ALWAYS_IGNORED),
    (["bf16_full_eval", "fp16_full_eval", "prediction_loss_only", "batch_eval_metrics"], _ALWAYS_IGNORED),
    (["eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"], _ALWAYS_IGNORED),
    (["include_for_metrics"], _ALWAYS_IGNORED),
    (["data_seed", "train_sampling_strategy", "do_predict"], [_FINETUNING]),
    # The model of pre-training, and its teacher
    (["size", "hidden_act", "weight_init", "initializer_range"], [When("starting_point", ("new model",))]),
    (["dropout", "max_position_embeddings", "positions"], [When("starting_point", ("new model",))]),
    (["embedding_size", "share_layers"], [When("starting_point", ("new model",))]),
    (["model_name_or_path"], [When("starting_point", ("checkpoint",))]),
    (["student_layers", "start_from_teacher", "fold_segments"], [When("objective", ("distilbert",))]),
    (["alpha_ce", "alpha_mlm", "alpha_cos"], [When("objective", ("distilbert",))]),
    (["temperature"], [When("objective", ("distilbert",)), When("distil", ("prediction",))]),
    (
        ["alpha_attn", "alpha_hidn", "alpha_embd"],
        [When("objective", ("tinybert",)), When("distil", ("intermediate",))],
    ),
    # The data of pre-training: instance files have their own pairs and masks
    (["max_seq_length", "short_seq_prob", "mlm_probability", "max_predictions_per_seq"], [_NO_INSTANCES]),
    (["mask_rate", "keep_rate", "random_rate", "whole_word", "selection"], [_NO_INSTANCES]),
    (["input_format", "pair_label", "dupe_factor", "old_store", "data_num_processes"], [_NO_INSTANCES]),
    (["mlm_probability", "mask_rate", "keep_rate", "random_rate"], [_MASKS]),
    (["max_predictions_per_seq"], [When("selection", ("count", "bernoulli", "ngrams"))]),
    (["whole_word"], [When("selection", ("count", "bernoulli", "fairseq"))]),
    (["short_seq_prob"], [When("input_format", ("segment_pair",))]),
    (["phase2_max_seq_length", "phase2_max_predictions_per_seq"], [When("phase2_steps")]),
    (["phase2_per_device_train_batch_size", "phase2_global_train_batch_size"], [When("phase2_steps")]),
    (["phase2_learning_rate", "phase2_warmup_steps"], [When("phase2_steps")]),
    # Tasks
    (["doc_stride"], [_QUESTIONS, When("long_documents", ("windows",))]),
    (["max_query_length", "n_best_size", "max_answer_length", "decoder"], [_QUESTIONS]),
    (["null_score_diff_threshold"], [_QUESTIONS]),
    (["label_all_pieces"], [When("task_kind", ("token_classification",))]),
    (["context"], [When("task_kind", ("token_classification", "multiple_choice"))]),
    (["long_documents"], [When("task_kind", ("sequence_classification",))]),
    (["max_predict_examples"], [When("do_predict", (True,)), When("split", ("test",))]),
    # A checkpoint that is measured
    (["max_train_examples", "freeze_encoder", "class_weights", "bilstm"], [_TRAINS]),
    (["max_steps", "num_train_epochs", "learning_rate", "warmup_steps", "weight_decay"], [_TRAINS]),
    (["optimizer", "schedule", "max_grad_norm", "early_stopping_patience", "resume", "estimate"], [_TRAINS]),
    (["global_train_batch_size", "gradient_accumulation_steps", "eval_strategy", "save_strategy"], [_TRAINS]),
    # Corpora, vocabularies, checkpoints, sweeps
    (["dataset_config_name", "dataset_split"], [When("dataset_name")]),
    (["n_grams", "num_buckets", "hashes_per_bucket", "seed"], [When("near", (True,))]),
    (["num_tokens", "min_frequency"], [When("tokens_file", is_unset=True)]),
    (["bert_config_file", "vocab_file", "do_lower_case", "exact_gelu", "labels"], [When("tf_checkpoint")]),
    (["num_seeds"], [When("seeds", is_unset=True)]),
)


def settings_without_effect(instances: Sequence[Any], values: Mapping[str, Any]) -> list[str]:
    """Name those of the values that have no effect beside all settings of a run, each with what it needs.

    Example:
        >>> settings_without_effect([RunArguments(save_strategy="no")], {"save_steps": 4})
        ['save_steps 4 (only with --save_strategy steps, not no)']
    """
    texts_of_reason: dict[str, list[str]] = {}
    for names, conditions in EFFECTS:
        texts = [f"{name} {_as_text(values[name])}" for name in names if name in values]
        reason = _why_without_effect(conditions, instances) if texts else None
        if reason is not None:
            texts_of_reason.setdefault(reason, []).extend(texts)
    return [f"{', '.join(texts)} ({reason})" for reason, texts in texts_of_reason.items()]


def _why_without_effect(conditions: Sequence[When], instances: Sequence[Any]) -> str | None:
    """Say what none of the instances fulfils; None where a condition holds, or the script has none of them."""
    if not conditions:
        return "nothing here reads it"
    reasons = []
    for when in conditions:
        for instance in instances:
            is_setting = when.name in {field.name for field in dataclasses.fields(instance)}
            if is_setting or hasattr(type(instance), when.name):
                value = _plain(getattr(instance, when.name))
                if when.holds(value):
                    return None
                reasons.append(when.describe(value, is_setting=is_setting))
    return ", or ".join(reasons) or None


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _as_text(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)
