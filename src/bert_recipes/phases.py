"""A run in two phases: short inputs first, long ones for the last steps, as one run.

Devlin et al. 2019, appendix A.2: 128 tokens for 90 % of the steps, 512 for the rest, under one learning-rate schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_recipes.arguments import DataArguments, PreTrainingArguments
from bert_recipes.errors import InputError


@dataclass
class PhaseArguments:
    """The last steps of a run, where they differ from those before."""

    phase2_steps: float = field(
        default=0,
        metadata={"help": "last steps of max_steps, with longer inputs, or their share if below 1 (0: none)"},
    )
    phase2_max_seq_length: int = field(default=512, metadata={"help": "tokens of a pair in phase 2 (paper: 512)"})
    phase2_max_predictions_per_seq: int | None = field(
        default=None,
        metadata={"help": "limit of predicted tokens a pair in phase 2; default: mlm_probability x length"},
    )
    phase2_per_device_train_batch_size: int | None = field(
        default=None, metadata={"help": "examples a process takes at once in phase 2; default: as before"}
    )
    phase2_global_train_batch_size: int | None = field(
        default=None, metadata={"help": "examples of a step in phase 2; default: as before"}
    )
    phase2_learning_rate: float | None = field(
        default=None, metadata={"help": "peak of phase 2's own schedule; default: one schedule over both phases"}
    )
    phase2_warmup_steps: float | None = field(
        default=None, metadata={"help": "warm-up of phase 2's own schedule, steps or their share if below 1"}
    )

    def __post_init__(self) -> None:
        if self.phase2_steps < 0 or (self.phase2_steps > 1 and self.phase2_steps % 1):
            raise InputError(f"phase2_steps is {self.phase2_steps}; allowed: whole steps, or a share below 1")
        for name in ("phase2_per_device_train_batch_size", "phase2_global_train_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; allowed: 1 or more")
        if (self.phase2_learning_rate is None) != (self.phase2_warmup_steps is None):
            raise InputError(
                "phase2_learning_rate and phase2_warmup_steps make a schedule of their own: give both, or neither for one "
                "schedule over both phases"
            )


@dataclass(frozen=True)
class Phase:
    """Some steps of a run.

    Attributes:
        first_step, end_step: Steps of the run, the last one excluded.
        global_batch: Examples of a step.
        micro_batch: Examples that a process takes at once, at most.
        max_seq_length, max_predictions_per_seq: Of its pairs.
        own_schedule: (warm-up, peak) of a schedule of its own; None: the run's, over all phases that have none.
    """

    first_step: int
    end_step: int
    global_batch: int
    micro_batch: int
    max_seq_length: int
    max_predictions_per_seq: int | None
    own_schedule: tuple[float, float] | None = None


def plan_phases(args: PreTrainingArguments, data: DataArguments, second: PhaseArguments) -> list[Phase]:
    """One phase, or two.

    Args:
        args: Settings of the run; max_steps is known where there are two phases.
        data: Of the first phase.
        second: Of the second; a share becomes a number of steps.
    """
    total, given = args.max_steps, second.phase2_steps
    second.phase2_steps = steps = round(given * max(total, 0)) if given < 1 else int(given)
    split = total - steps
    first = Phase(
        *(0, split, args.examples_a_step, args.per_device_train_batch_size),
        *(data.max_seq_length, data.max_predictions_per_seq),
    )
    if not steps and (total > 0 or not given):
        return [first]
    if split <= 0:
        raise InputError(
            f"phase2_steps is {given:g}, max_steps {total}; the second phase is the last part of max_steps: give "
            "more of them"
        )
    own = None
    if second.phase2_learning_rate is not None and second.phase2_warmup_steps is not None:
        own = second.phase2_warmup_steps, second.phase2_learning_rate
    return [
        first,
        Phase(
            *(split, total, second.phase2_global_train_batch_size or args.examples_a_step),
            second.phase2_per_device_train_batch_size or args.per_device_train_batch_size,
            *(second.phase2_max_seq_length, second.phase2_max_predictions_per_seq, own),
        ),
    ]


def has_second_phase(settings: Mapping[str, Any]) -> bool:
    """Whether a run had two phases.

    Args:
        settings: Of its run.yaml, values as they are written there.
    """
    return settings.get("phase2_steps") not in (None, "0")


def key_in_last_phase(settings: Mapping[str, Any], name: str) -> str:
    """Under which key run.yaml has a setting of the data as the run's last phase had it: by that the run was measured.

    Args:
        settings: As for `has_second_phase`.
        name: A field of `DataArguments`.
    """
    own = f"phase2_{name}"
    return own if has_second_phase(settings) and own in PhaseArguments.__dataclass_fields__ else name
