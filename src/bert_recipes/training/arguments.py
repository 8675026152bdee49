"""The settings of a run: `RunArguments` for all, and model, data and phases of pre-training."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from bert_recipes.config import warn_in_main_process
from bert_recipes.data.formats import INPUT_FORMATS, PAIR_LABELS
from bert_recipes.data.masking import VARIABLE_SELECTIONS
from bert_recipes.data.processes import count_cores
from bert_recipes.errors import InputError
from bert_recipes.models.kernels.loading import FAST_LAYERS
from bert_recipes.models.sizes import (
    ALBERT_SIZES,
    MIN_POSITIONS,
    SIZES,
    TINYBERT_SIZES,
    shape_of,
)
from bert_recipes.settings import SEEDS, changeable, check_limits, metadata_of, option
from bert_recipes.training.batch_sizes import (
    BATCH_FACTORS,
    GLOBAL_BATCH,
    INTERVALS,
    reconcile_batch_and_intervals,
)
from bert_recipes.training.cost import EnergySettings
from bert_recipes.training.launch import check_gpus, join_processes_on_cpus
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.optimization import (
    ADAM_OPTIMIZERS,
    OPTIMIZERS,
    SCHEDULES,
    bfloat16_unit,
)


PRECISIONS = ("auto", "fp32", "bf16", "fp16")
# Data-loading processes of a GPU process, at most. Four make several times the tokens that base
# takes (`benchmarks/benchmark.py --suite data`), and leave the cores to the process itself.
MAX_DATA_WORKERS = 4


class Precision(NamedTuple):
    """fp32, bf16 or fp16, and for the log why it was chosen."""

    name: str
    reason: str


def choose_precision(precision: str, *, use_cpu: bool) -> Precision:
    """Resolve one of `PRECISIONS` from what the device can do.

    Weights, optimizer state and losses stay in float32; the choice is about matrix products under
    autocast. The same machine always gives the same answer.
    """
    unit = bfloat16_unit("cpu" if use_cpu else "cuda")
    if precision == "fp16" and use_cpu:
        raise InputError(
            "precision is 'fp16'; a CPU has no fast fp16 products: use bf16, fp32 or auto"
        )
    if precision == "bf16" and not use_cpu and not unit:
        raise InputError(
            "precision is 'bf16'; this GPU has no bfloat16 units (compute capability below 8.0): "
            "use fp16"
        )
    if precision != "auto":
        return Precision(precision, "as asked")
    if use_cpu and unit:
        return Precision("bf16", f"this CPU multiplies bfloat16 in hardware ({unit})")
    if use_cpu:
        return Precision("fp32", "this CPU multiplies bfloat16 no faster")
    if unit:
        return Precision("bf16", "this GPU has bfloat16 units")
    return Precision("fp16", "this GPU is older than 8.0")


def num_data_workers(num_processes: int) -> int:
    """Return the data-loading processes of each GPU process: its cores less two, from 1 to 4."""
    return min(max(count_cores() // num_processes - 2, 1), MAX_DATA_WORKERS)


# max_steps of a run with max_minutes.
NO_STEP_LIMIT = 100_000_000
# Schedules of the Trainer whose parts have lengths in steps: they cannot follow the minutes.
SCHEDULERS_IN_STEPS = (SchedulerType.INVERSE_SQRT, SchedulerType.WARMUP_STABLE_DECAY)


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` with device, precision, batch and optimizer settings of this project."""

    # Metadata of the library's fields, as `settings.option` takes it. "refused" is the reason why
    # another value than the default is refused.
    LIBRARY_FIELDS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "output_dir": {
            "is_common": True,
            "help": "folder of the run",
        },
        "max_steps": {
            "is_common": True,
            "help": "steps of the run; -1: num_train_epochs decides",
        },
        "num_train_epochs": {"help": "passes over the data, without max_steps", "above": 0},
        "learning_rate": {"is_common": True, "least": 0},
        "warmup_steps": {"is_common": True, "least": 0},
        "adam_beta1": {"least": 0, "below": 1},
        "adam_beta2": {"least": 0, "below": 1},
        "label_smoothing_factor": {"least": 0, "most": 1},
        "neftune_noise_alpha": {"least": 0},
        "seed": {"is_common": True, **SEEDS},
        "data_seed": SEEDS,
        "per_device_eval_batch_size": {"least": 1},
        "eval_accumulation_steps": {"least": 1},
        "eval_delay": {"least": 0},
        "eval_strategy": {
            "is_common": True,
            "help": "when to evaluate",
        },
        "eval_steps": {
            "is_common": True,
            "help": "steps between evaluations",
            "above": 0,
            "advice": "--eval_strategy no evaluates at the end alone",
        },
        "logging_steps": {
            "is_common": True,
            "help": "steps between log lines",
            "above": 0,
            "advice": "--logging_strategy no logs nothing",
        },
        "save_steps": {
            "is_common": True,
            "help": "steps between checkpoints",
            "above": 0,
            "advice": "--save_strategy no keeps no checkpoint",
        },
        "save_total_limit": {
            "help": "checkpoints that are kept, the best among them",
            "least": 1,
            "advice": "null keeps all of them",
        },
        "report_to": {
            "is_common": True,
            "help": "trackers: none, wandb, tensorboard, trackio",
        },
        "push_to_hub": {
            "is_common": True,
            "help": "push checkpoints and the finished run",
        },
        "hub_model_id": {
            "is_common": True,
            "help": "repository on the Hub",
        },
        "torch_empty_cache_steps": {"least": 1},
        "dataloader_prefetch_factor": {"least": 1},
        "ddp_timeout": {"least": 1},
        "ddp_bucket_cap_mb": {"least": 1},
        "auto_find_batch_size": {
            "refused": "the global batch would change with the memory at hand"
        },
        "bf16_full_eval": {"refused": "evaluations have the precision of the training"},
        "fp16_full_eval": {"refused": "evaluations have the precision of the training"},
        "enable_jit_checkpoint": {"refused": "SIGTERM saves a checkpoint anyway, and ends the run"},
        "save_on_each_node": {"refused": "output_dir is one folder of all machines"},
        "ignore_data_skip": {"refused": "a resumed run continues where it stopped"},
        "resume_from_checkpoint": {
            "refused": "give --resume last, or --resume FOLDER",
            "is_saved": False,
        },
        "save_only_model": {
            "refused": "no run could be resumed from such checkpoints; the finished run's folder "
            "is a model alone"
        },
    }
    adam_epsilon: float = option(1e-6, "epsilon of Adam (original: 1e-6)", least=0)
    weight_decay: float = option(0.01, "weight decay (paper: 0.01)", least=0)
    max_grad_norm: float = option(1.0, "clip the gradient's global norm (original: 1.0)", least=0)
    remove_unused_columns: bool | None = option(
        False, "must stay false", refused="the batches hold what the recipe needs"
    )
    # Declared again for the type checker: the base class assigns them in ways that it cannot
    # follow.
    per_device_train_batch_size: int = changeable(
        8, "examples per process at once, at most", least=1, is_common=True
    )
    gradient_accumulation_steps: int = changeable(
        1, "micro-batches of a step, unless global_train_batch_size decides", least=1
    )
    dataloader_num_workers: int | None = changeable(
        None,
        "processes that load data; default: on a GPU 4, or one a core but two, on a CPU 0",
        least=0,
    )
    use_cpu: bool = option(False, "use the CPU even where there is a GPU", is_saved=False)
    bf16: bool = option(False, "the same as precision: bf16", is_saved=False)
    fp16: bool = option(False, "the same as precision: fp16", is_saved=False)
    # The buffers of these models are constants.
    ddp_broadcast_buffers: bool | None = option(False, "DDP sends buffers before each pass")
    # A loss that is not finite ends the run soon, and is not hidden in a mean before that.
    logging_nan_inf_filter: bool = option(
        False, "must stay false", refused="it would hide what is wrong in the log"
    )
    optimizer: str = option("bert_adam", "optimizer", choices=OPTIMIZERS)
    schedule: str = option("bert_linear", "learning-rate schedule", choices=SCHEDULES)
    muon_learning_rate: float | None = option(
        None, "peak rate of Muon's matrices, beside learning_rate; default: 0.02", above=0
    )
    muon_row_beta: float = option(
        0.0,
        "NorMuon: decay rate of the mean square of a row of Muon's updates (0: Muon)",
        least=0,
        below=1,
    )
    muon_weight_decay: float = option(
        0.0, "decay of Muon's matrices, of weights that the update makes smaller too", least=0
    )
    muon_momentum_warmup: float = option(
        0.0, "fraction of the run in which Muon's momentum rises from 0.85 to 0.95", least=0, most=1
    )
    schedule_power: float = option(1.0, "exponent of bert_linear's decay (original: 1)", above=0)
    flat_until: float = option(
        0.0,
        "fraction of bert_linear at which its decay begins (original: 0, it counts from step 0)",
        least=0,
        below=1,
    )
    precision: str = changeable(
        "auto", "precision of matrix products", choices=PRECISIONS, is_common=True
    )
    fast_layers: str = changeable(
        "auto",
        "layers on packed rows: fused kernels on a CPU, torch.compile and flash attention on a GPU",
        choices=FAST_LAYERS,
    )
    keep_freed_memory: bool = changeable(
        True, "on a CPU: glibc keeps what a step frees for the next one"
    )
    global_train_batch_size: int | None = changeable(
        None, "examples of a step, all processes together", is_common=True
    )
    estimate: bool = option(
        False,
        "train a few steps, say what the run will take, and end",
        is_common=True,
        is_saved=False,
    )
    estimate_file: str | None = option(
        None, "JSON file for the numbers of that estimate", is_saved=False
    )
    resume: str = option(
        "auto",
        "auto (an unfinished run is resumed), last, no, or a checkpoint folder",
        is_common=True,
        is_saved=False,
    )
    allow_changes: bool = option(
        False, "resume although settings or data have changed", is_saved=False
    )
    overwrite_run: bool = option(
        False,
        "start from scratch in an output_dir that holds a run",
        is_common=True,
        is_saved=False,
    )
    max_skipped_steps: int = changeable(
        10, "steps in a row with a gradient not finite that end the run", least=1
    )
    # Stock's default makes public repositories.
    hub_private_repo: bool | None = option(
        True, "a new repository is private; null: as the owner's default is"
    )
    hub_overwrite: bool = option(False, "replace another model in the repository", is_saved=False)
    hub_tags: list[str] | None = option(None, "tags for the model card on the Hub")
    power_watts: float | None = changeable(
        None, "watts that the machine draws, to estimate the energy of the run", above=0
    )
    country_iso_code: str | None = changeable(None, "country of the machine (DEU), for the card")
    carbon_intensity: float | None = changeable(
        None, "g CO2e/kWh of its electricity, to estimate the CO2 of the run", least=0
    )

    def __post_init__(self) -> None:
        self.has_output_dir = self.output_dir is not None  # `TrainingArguments` has a default
        # Fields that follow from the machine: run.yaml leaves them out, and can be run elsewhere.
        self.unsaved_fields: set[str] = set()
        # Field -> the value that was given, where a Trainer sets another one.
        self.given_values: dict[str, Any] = {}
        self.hub_is_checked = False  # whether `check_push` has asked the Hub
        self.hub_replaced_files: tuple[str, ...] = ()  # the files of another model that it found
        self._check()
        self.energy.check()
        self._choose_device()
        self._set_data_workers()
        self._choose_precision()
        self._split_global_batch()
        self._start_processes()

    def _choose_device(self) -> None:
        """Set `use_cpu` where the run or its launcher asks for the CPU, or there is no GPU."""
        launched_on_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower()
        self.cpu_is_chosen = self.use_cpu or launched_on_cpu in ("1", "true", "yes")
        self.use_cpu = self.cpu_is_chosen or not torch.cuda.is_available()
        if not self.use_cpu:
            check_gpus()

    def _choose_precision(self) -> None:
        """Set `bf16` and `fp16`, and Accelerate's environment variable.

        The precision of a launcher or an Accelerate configuration must not overrule that of the
        run.
        """
        if self.bf16 or self.fp16:  # other spellings of `precision`
            self.precision = "bf16" if self.bf16 else "fp16"
        precision, self.precision_reason = choose_precision(self.precision, use_cpu=self.use_cpu)
        self.bf16 = precision == "bf16"
        self.fp16 = precision == "fp16"
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no" if precision == "fp32" else precision

    def _start_processes(self) -> None:
        """Let stock check its fields and open the device, and let the processes find each other."""
        try:
            if self.use_cpu and self.ddp_backend in (None, "gloo"):
                join_processes_on_cpus(self.ddp_timeout_delta)
            super().__post_init__()
        except (ValueError, ImportError) as error:  # ImportError: DeepSpeed
            raise InputError(str(error)) from error
        # Each process loads the complete model. With its own way for ZeRO 3 transformers would
        # initialize heads differently and save LayerNorm as gamma and beta.
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config  # takes seconds

        unset_hf_deepspeed_config()

    def _set_data_workers(self) -> None:
        if self.dataloader_num_workers is None:
            num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", self._num_processes()))
            self.dataloader_num_workers = 0 if self.use_cpu else num_data_workers(num_processes)
            self.unsaved_fields.add("dataloader_num_workers")
        if self.dataloader_persistent_workers and self.dataloader_num_workers == 0:
            raise InputError(
                "dataloader_persistent_workers needs dataloader_num_workers of 1 or more"
            )

    @property
    def several_processes(self) -> bool:
        """Return whether two or more processes train the model.

        Read by effects.yaml.
        """
        return self._num_processes() > 1

    @property
    def energy(self) -> EnergySettings:
        """Return the settings by which the energy of the run is estimated."""
        return EnergySettings(self.power_watts, self.country_iso_code, self.carbon_intensity)

    def _check(self) -> None:
        """Refuse settings that cannot work, and those that would silently train something else."""
        check_limits(self)
        if self.max_steps < 1 and self.max_steps != -1:
            raise InputError(
                f"max_steps is {self.max_steps}; allowed: 1 or more, or -1 for num_train_epochs"
            )
        defaults = {item.name: item.default for item in fields(self)}
        for name, metadata in metadata_of(type(self)).items():
            if "refused" in metadata and getattr(self, name) != defaults[name]:
                raise InputError(
                    f"{name} is {getattr(self, name)}; leave it out: {metadata['refused']}"
                )
        flags = [name for name in ("bf16", "fp16") if getattr(self, name)]
        if len(flags) > 1 or (flags and self.precision not in ("auto", flags[0])):
            raise InputError(
                f"precision is '{self.precision}' and {' and '.join(flags)} true; give one of them"
            )
        if self.overwrite_run and self.resume not in ("auto", "no"):
            raise InputError(f"resume is '{self.resume}' and overwrite_run true; give one of them")
        if self.hub_token is not None:
            raise InputError(
                "hub_token: a token on the command line or in a file of settings is seen by "
                "everybody who lists the processes, and "
                "would be kept; log in with `hf auth login`, or set HF_TOKEN in the environment"
            )

    @property
    def global_batch_size(self) -> int:
        """Return the examples per step of all processes together."""
        return (
            self.per_device_train_batch_size
            * self.gradient_accumulation_steps
            * self._num_processes()
        )

    @staticmethod
    def _num_processes() -> int:
        return int(os.environ.get("WORLD_SIZE", "1"))

    def _split_global_batch(self) -> None:
        """Cut the global batch into micro-batches of at most per_device_train_batch_size."""
        total = self.global_train_batch_size
        if total is None:
            return
        micro, accumulation = self.split_batch(total, self.per_device_train_batch_size)
        if self.gradient_accumulation_steps not in (1, accumulation):
            raise InputError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps} and "
                f"global_train_batch_size {total}, which makes it {accumulation} ({micro} examples "
                f"x {self._num_processes()} processes at once); leave one of them out"
            )
        self.per_device_train_batch_size = micro
        self.gradient_accumulation_steps = accumulation
        # The number of micro-batches follows from the number of processes.
        self.unsaved_fields.add("gradient_accumulation_steps")

    @classmethod
    def reconcile(
        cls, values: dict[str, Any], typed: Collection[str], in_file: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Make batch sizes and intervals of the file agree with the flags."""
        defaults = {name: getattr(cls, name) for name in (*BATCH_FACTORS, GLOBAL_BATCH)}
        return reconcile_batch_and_intervals(values, typed, defaults, cls._num_processes())

    def split_batch(self, total: int, most: int) -> tuple[int, int]:
        """Cut a global batch into the largest micro-batches of at most `most` examples.

        Returns:
            The examples of a micro-batch, and the number of micro-batches a process.
        """
        processes = self._num_processes()
        if total < 1 or total % processes:
            raise InputError(
                f"a global batch of {total} cannot be shared by {processes} processes; give "
                "--global_train_batch_size as a multiple of their number"
            )
        share = total // processes
        micro = min(most, share)
        while share % micro:
            micro -= 1
        return micro, share // micro


@dataclass
class ModelArguments:
    """The settings of the model to train."""

    size: str = option(
        "tiny",
        f"size of a new model: {', '.join(SIZES)}; of ALBERT also {', '.join(ALBERT_SIZES)}, of "
        f"TinyBERT {', '.join(TINYBERT_SIZES)}; or LAYERS/HIDDEN_SIZE",
        is_common=True,
    )
    model_name_or_path: str | None = changeable(
        None, "checkpoint to start from (folder or Hub name)", is_common=True
    )
    hidden_act: str = option(
        "gelu_new", "activation of a new model: gelu_new (the original's tanh form) or gelu"
    )
    weight_init: str = option(
        "truncated_normal",
        "new weights: truncated_normal (original), normal (stock), or sinusoidal_positions "
        "(ours): what is near is learned sooner",
    )
    initializer_range: float = option(
        0.02, "standard deviation of new weights (original: 0.02)", above=0, below=1
    )
    word_vectors: bool = option(
        False,
        "word embeddings of a new model begin as vectors of what stands beside each piece in the "
        "store, output biases as frequencies (ours); it takes seconds",
    )
    dropout: float = option(0.1, "dropout of a new model (paper: 0.1)", least=0, below=1)
    max_position_embeddings: int = option(
        512, "positions of a new model (paper: 512)", least=MIN_POSITIONS
    )
    objective: str = option(
        "bert", "what is learned, and by which model", choices=OBJECTIVES, is_common=True
    )
    positions: str | None = option(
        None, "none: a new model does not see the order, as for sets of ids", choices=("none",)
    )
    embedding_size: int | None = option(
        None, "ALBERT, ELECTRA: size of a new model's embeddings (paper: 128)", above=0
    )
    share_layers: str | None = option(
        None, "ALBERT: what the layers of a new model share", choices=("all", "none")
    )

    @classmethod
    def reconcile(
        cls, values: dict[str, Any], typed: Collection[str], in_file: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Fill in the settings of the objective.

        A flag wins over the objective. The objective wins, with a warning, over a file, unless the
        file names the same objective. With `model_name_or_path` a file also wins over the
        objective's `adam_settings`.
        """
        objective_name = values.get("objective", "bert")
        if objective_name not in OBJECTIVES:
            return values  # refused when the settings are checked
        objective = OBJECTIVES[objective_name]
        settings = dict(objective.settings)
        user_settings = set(typed)
        if in_file.get("objective") == objective_name:
            user_settings.update(in_file)
        if values.get("model_name_or_path") is not None:
            user_settings.update(in_file.keys() & objective.adam_settings.keys())
            # The checkpoint has what these fields would give a new model.
            for name in cls.__dataclass_fields__:
                settings.pop(name, None)
        if values.get("optimizer", "bert_adam") in ADAM_OPTIMIZERS:
            settings.update(objective.adam_settings)
            settings.update(objective.adam_settings_of_sizes.get(values.get("size", ""), {}))

        values = dict(values)
        replaced = []
        for name, value in settings.items():
            if name in user_settings:
                continue
            if values.get(name, value) != value:
                replaced.append(f"{name} {value} instead of the file's {values[name]}")
            values[name] = value
        if replaced:
            message = "objective %s: %s; give --field value to have another one"
            warn_in_main_process(message, objective_name, ", ".join(replaced))
        return values

    @property
    def starting_point(self) -> str:
        """Return the origin of the weights: teacher, new model or checkpoint."""
        if OBJECTIVES[self.objective].copies_teacher:
            return "teacher"
        return "new model" if self.model_name_or_path is None else "checkpoint"

    def __post_init__(self) -> None:
        check_limits(self)
        shape_of(self.size, OBJECTIVES[self.objective].model_type)
        self._check_objective("embedding_size", ("albert", "electra"))
        self._check_objective("share_layers", ("albert",))

    def _check_objective(self, name: str, objectives: Collection[str]) -> None:
        if getattr(self, name) is not None and self.objective not in objectives:
            raise InputError(
                f"{name} is for --objective {' or '.join(objectives)}; it has no meaning with "
                f"{self.objective}: leave it out"
            )


@dataclass
class DataArguments:
    """The data, and the rules that make pairs and masks of it."""

    store: str | None = changeable(
        None, "token-id store written by recipes/prepare_corpus.py", is_common=True
    )
    old_store: str | None = changeable(
        None, "store of older text: its held-out part is measured too, as eval_old_..."
    )
    train_file: list[str] | None = changeable(
        None, "files of create_pretraining_data.py, not a store"
    )
    validation_file: list[str] | None = changeable(None, "held-out instance files")
    tokenizer: str | None = changeable(None, "tokenizer folder; default: the store's own")
    max_seq_length: int = option(
        128, "tokens of an input, special tokens included", least=8, is_common=True
    )
    short_seq_prob: float = option(
        0.1, "fraction of documents with a shorter target length", least=0, most=1
    )
    mlm_probability: float = option(0.15, "fraction of the tokens that is predicted")
    mlm_probability_end: float | None = option(
        None, "that fraction at the end of the run and in evaluations; it changes linearly"
    )
    max_predictions_per_seq: int | None = option(
        None, "predicted tokens per input, at most; default: a fraction"
    )
    mask_rate: float = option(0.8, "fraction of predicted tokens replaced by [MASK]")
    keep_rate: float = option(0.1, "fraction of predicted tokens left as they are")
    random_rate: float = option(0.1, "fraction of predicted tokens replaced by a random word")
    whole_word: bool = option(False, "mask whole words")
    selection: str = option(
        "count",
        "count (the original's fixed number), bernoulli, fairseq (RoBERTa), ngrams (ALBERT), "
        "spans (SpanBERT), causal, or none",
    )
    input_format: str = option(
        "segment_pair", "how sentences become an input", choices=INPUT_FORMATS
    )
    pair_label: str = option("next", "what is learned of a pair", choices=PAIR_LABELS)
    dupe_factor: int | None = option(
        None,
        "pairs and masks are drawn so many times and come again (static masks); default: anew "
        "every epoch",
        least=1,
    )
    max_eval_pairs: int = changeable(2000, "held-out pairs of an evaluation", least=1)
    data_cache_dir: str | None = changeable(None, "folder for the index of each epoch")
    data_num_processes: int = changeable(1, "processes that build an epoch's index", least=1)

    @classmethod
    def reconcile(
        cls, values: dict[str, Any], typed: Collection[str], in_file: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Let a file's `mlm_probability_end` give way to what has one rate.

        That is a rate that is typed, masks that are drawn once, and selections with one rate.
        """
        end = in_file.get("mlm_probability_end")
        if end is None or "mlm_probability_end" in typed:
            return values
        selection = values.get("selection", "count")
        is_other_selection = selection != in_file.get("selection")
        leaves_variable_rate = is_other_selection and selection not in VARIABLE_SELECTIONS
        is_typed = "mlm_probability" in typed or "dupe_factor" in typed
        if not is_typed and not leaves_variable_rate:
            return values
        values = dict(values)
        del values["mlm_probability_end"]
        if "mlm_probability" not in typed:
            values["mlm_probability"] = end
        rate = values["mlm_probability"]
        warn_in_main_process(
            "mlm_probability is %s throughout, without the file's mlm_probability_end", rate
        )
        return values

    def __post_init__(self) -> None:
        if self.store is None and self.train_file is None:
            raise InputError(
                "no data is given: give --store FOLDER (recipes/prepare_corpus.py) or "
                "--train_file FILE"
            )
        if self.store is not None and self.train_file is not None:
            raise InputError("both --store and --train_file are given; give one of them")
        if self.dupe_factor is not None and self.mlm_probability_end is not None:
            raise InputError(
                "dupe_factor repeats masks, and with mlm_probability_end none repeats; give one "
                "of them"
            )
        check_limits(self)


@dataclass
class DistillationArguments:
    """The teacher, the student and the weights of losses, for distilbert or tinybert."""

    teacher: str | None = changeable(
        None,
        "checkpoint that teaches: BERT, or RoBERTa for a student of its own kind",
        is_common=True,
    )
    student_layers: int | None = option(
        None, "layers of the student; default: half of the teacher's", least=1
    )
    start_from_teacher: bool | None = option(
        None, "begin with the teacher's embeddings and layers, as the paper; else at random"
    )
    fold_segments: bool | None = option(
        None, "add the teacher's first segment to the positions: a student has none"
    )
    temperature: float | None = option(
        None, "of both softmaxes in the loss between teacher and student", above=0
    )
    alpha_ce: float | None = option(None, "weight of the loss between teacher and student", least=0)
    alpha_mlm: float | None = option(None, "weight of the masked-LM loss beside a teacher", least=0)
    alpha_cos: float | None = option(
        None, "weight of the cosine between the last hidden states", least=0
    )
    alpha_attn: float | None = option(None, "TinyBERT: weight of the attention scores", least=0)
    alpha_hidn: float | None = option(None, "TinyBERT: weight of the hidden states", least=0)
    alpha_embd: float | None = option(None, "TinyBERT: weight of the embeddings", least=0)

    def __post_init__(self) -> None:
        check_limits(self)


def check_teacher(objective: str, args: DistillationArguments) -> None:
    """Refuse an objective without the teacher or a weight that it needs, and those of another."""
    of_objective = OBJECTIVES[objective].teacher_settings
    if of_objective and args.teacher is None:
        raise InputError(f"--objective {objective} needs a teacher: give --teacher CHECKPOINT")
    for item in fields(args):
        value = getattr(args, item.name)
        if value is not None and item.name not in of_objective:
            takers = [name for name, row in OBJECTIVES.items() if item.name in row.teacher_settings]
            raise InputError(
                f"{item.name} has no meaning with --objective {objective}: leave it out, or give "
                f"--objective {' or '.join(takers)}"
            )
        if value is None and item.name in OBJECTIVES[objective].settings:
            raise InputError(f"{item.name} is null; --objective {objective} needs a number")


# Held-out figures beside losses.
_LOWER_IS_BETTER = ("perplexity", "bits_per_character")


@dataclass
class PreTrainingArguments(RunArguments):
    """The settings of a pre-training run.

    Defaults: learning rate, Adam and warm-up of Devlin et al. 2019, appendix A.2; epsilon of
    google-research/bert optimization.py.
    """

    run_kind: ClassVar[str] = "pre-training"

    max_minutes: float | None = option(
        None,
        "end after so many minutes instead of max_steps; the schedule follows the clock",
        above=0,
        is_common=True,
    )
    random_replacements: float = option(
        0.0,
        "ELECTRA: share of the predicted tokens that any word fills instead of the generator's; "
        "it falls to 0 at the end (paper: 0)",
        least=0,
        below=1,
    )
    sampled_softmax: bool = option(
        False,
        "on a CPU, train over the frequent pieces and a sample of the others (ours): quicker where "
        "the vocabulary is large for the model",
    )
    save_at_epochs: list[float] | None = changeable(
        None,
        "after so many passes over the data save a checkpoint that is kept: 0.1 0.5 1 2",
        above=0,
    )
    learning_rate: float = option(1e-4, "peak learning rate (paper: 1e-4)")
    warmup_steps: float = option(0.01, "warm-up steps, or their fraction if below 1 (paper: 0.01)")
    seed: int = option(12345, "seed of weights, pairs, masks and order (original: 12345)")

    @classmethod
    def reconcile(
        cls, values: dict[str, Any], typed: Collection[str], in_file: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Leave out the minutes of a file where steps are typed, and the other way round.

        With typed minutes, an interval of the file that is a fraction of its steps becomes a fifth
        of the minutes. Evaluations then read at most the default number of pairs: the first
        evaluation of a large model could take most of the minutes.
        """
        values = dict(values)
        has_typed_minutes = "max_minutes" in typed and values["max_minutes"] is not None
        if has_typed_minutes:
            for name in INTERVALS:
                is_fraction = 0 < (values.get(name) or 0) < 1
                if is_fraction and name not in typed:
                    values[name] = NO_STEP_LIMIT  # `ClockIntervals` comes before
            most_pairs = DataArguments.max_eval_pairs
            pairs_in_file = in_file.get("max_eval_pairs") or 0
            if pairs_in_file > most_pairs and "max_eval_pairs" not in typed:
                values["max_eval_pairs"] = most_pairs
                warn_in_main_process(
                    "max_eval_pairs of the file becomes %d: evaluations take time of max_minutes",
                    most_pairs,
                )
        if "max_steps" in typed and "max_minutes" not in typed:
            values.pop("max_minutes", None)
        if has_typed_minutes and "max_steps" not in typed:
            values.pop("max_steps", None)
        return super().reconcile(values, typed, in_file)

    def _check(self) -> None:
        super()._check()
        self._choose_best_metric()
        for name in ("eval_strategy", "save_strategy", "logging_strategy"):
            if getattr(self, name) == "epoch":
                raise InputError(
                    f"{name} is 'epoch'; a run is one pass over many epochs of pairs: give steps "
                    "or no"
                )
        if self.max_minutes is not None:
            self._check_clock()
            # Stock needs a number of steps; the clock ends the run long before.
            self.max_steps: int = NO_STEP_LIMIT

    def _choose_best_metric(self) -> None:
        """Set what stock does not know about the metric of the best checkpoint."""
        if self.save_strategy == "best":
            self.metric_for_best_model: str | None = self.metric_for_best_model or "loss"
        is_lower_better = str(self.metric_for_best_model).endswith(_LOWER_IS_BETTER)
        if is_lower_better and self.greater_is_better is None:
            # Stock takes for a score what does not end with "loss".
            self.greater_is_better: bool | None = False

    def _check_clock(self) -> None:
        for name in ("eval_steps", "save_steps", "logging_steps"):
            steps = getattr(self, name) or 0
            if 0 < steps < 1:
                raise InputError(f"{name} is {steps}; allowed with max_minutes: whole steps")
        if not 0 <= self.warmup_steps < 1:
            raise InputError(
                f"warmup_steps is {self.warmup_steps}; allowed with max_minutes: a fraction below 1"
            )
        if self.schedule == "trainer" and self.lr_scheduler_type in SCHEDULERS_IN_STEPS:
            name = SchedulerType(self.lr_scheduler_type).value
            raise InputError(
                f"lr_scheduler_type is '{name}', which counts steps; allowed with max_minutes: "
                "linear, cosine and the others, or --schedule bert_linear, where --flat_until "
                "holds the peak"
            )
        if self.max_steps not in (-1, NO_STEP_LIMIT):
            raise InputError(
                f"max_steps is {self.max_steps} and max_minutes {self.max_minutes:g}; give one of "
                "them"
            )


@dataclass
class PhaseArguments:
    """The settings of the last steps of a run."""

    phase2_steps: float = option(
        0,
        "last steps, with longer inputs, or their fraction if below 1 (0: none)",
        least=0,
        is_common=True,
    )
    phase2_max_seq_length: int = option(512, "tokens of an input in phase 2 (paper: 512)", least=8)
    phase2_max_predictions_per_seq: int | None = option(
        None, "predicted tokens, at most; default: a fraction", least=1
    )
    phase2_per_device_train_batch_size: int | None = changeable(
        None, "examples per process at once; default: as in phase 1", least=1
    )
    phase2_global_train_batch_size: int | None = option(
        None, "examples of a step in phase 2; default: as in phase 1", least=1
    )
    phase2_learning_rate: float | None = option(
        None, "peak of a schedule of its own; default: one over both", least=0
    )
    phase2_warmup_steps: float | None = option(
        None, "its warm-up, steps or their fraction if below 1", least=0
    )

    @classmethod
    def reconcile(
        cls, values: dict[str, Any], typed: Collection[str], in_file: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Leave out the second phase of a file where the run ends by the clock."""
        if (
            values.get("max_minutes") is None
            or not values.get("phase2_steps")
            or "phase2_steps" in typed
        ):
            return values
        warn_in_main_process(
            "the file's phase2_steps: left out, as a run by the clock has one phase"
        )
        return {**values, "phase2_steps": 0}

    def __post_init__(self) -> None:
        check_limits(self)
        if self.phase2_steps > 1 and self.phase2_steps % 1:
            raise InputError(
                f"phase2_steps is {self.phase2_steps}; allowed: whole steps, or a fraction below 1"
            )
        if (self.phase2_learning_rate is None) != (self.phase2_warmup_steps is None):
            raise InputError(
                "phase2_learning_rate and phase2_warmup_steps make a schedule of their own: give "
                "both, or neither for one schedule over both phases"
            )

    def steps_of(self, max_steps: int) -> int:
        """Return the steps of the second phase in a run of `max_steps`, 0 without one."""
        if self.phase2_steps < 1:
            return round(self.phase2_steps * max(max_steps, 0))
        return int(self.phase2_steps)


@dataclass(frozen=True)
class PhasePlan:
    """Some steps of a run, `end_step` excluded."""

    first_step: int
    end_step: int
    global_batch: int  # examples per step
    micro_batch: int  # examples that a process takes at once, at most
    max_seq_length: int
    max_predictions_per_seq: int | None
    # (warm-up, peak) of a schedule of its own; None: the schedule of the run, which all phases
    # without one share
    own_schedule: tuple[float, float] | None = None


def plan_phases(
    args: PreTrainingArguments, data_args: DataArguments, phase_args: PhaseArguments
) -> list[PhasePlan]:
    """Return one phase, or two: short inputs first, long ones for the last steps.

    Source: Devlin et al. 2019, appendix A.2: 128 tokens for 90 % of the steps, 512 for the rest,
    under one learning-rate schedule.
    """
    total = args.max_steps
    steps_or_fraction = phase_args.phase2_steps
    if steps_or_fraction and args.max_minutes is not None:
        raise InputError(
            f"phase2_steps is {steps_or_fraction:g} and max_minutes {args.max_minutes:g}; a run by "
            "the clock has one phase: leave one of them out"
        )
    steps = phase_args.steps_of(total)
    first = PhasePlan(
        first_step=0,
        end_step=total - steps,
        global_batch=args.global_batch_size,
        micro_batch=args.per_device_train_batch_size,
        max_seq_length=data_args.max_seq_length,
        max_predictions_per_seq=data_args.max_predictions_per_seq,
    )
    if not steps_or_fraction:
        return [first]
    if not steps and total > 0:
        message = "phase2_steps %g of %d steps is no whole step: the run has one phase"
        warn_in_main_process(message, steps_or_fraction, total)
        return [first]
    if first.end_step <= 0:
        raise InputError(
            f"phase2_steps is {steps_or_fraction:g}, max_steps {total}; the second phase is the "
            "last part of max_steps: give more of them"
        )
    schedule = None
    if phase_args.phase2_warmup_steps is not None and phase_args.phase2_learning_rate is not None:
        schedule = phase_args.phase2_warmup_steps, phase_args.phase2_learning_rate
    last = PhasePlan(
        first_step=first.end_step,
        end_step=total,
        global_batch=phase_args.phase2_global_train_batch_size or first.global_batch,
        micro_batch=phase_args.phase2_per_device_train_batch_size or first.micro_batch,
        max_seq_length=phase_args.phase2_max_seq_length,
        max_predictions_per_seq=phase_args.phase2_max_predictions_per_seq,
        own_schedule=schedule,
    )
    return [first, last]


def has_second_phase(settings: Mapping[str, Any]) -> bool:
    """Return whether a run had two phases, by its run.yaml, with numbers or their texts."""
    return float(settings.get("phase2_steps") or 0) > 0


def key_in_last_phase(settings: Mapping[str, Any], name: str) -> str:
    """Return the key in run.yaml of a field of `DataArguments`, for the run's last phase.

    The run was measured with the settings of that phase.
    """
    key = f"phase2_{name}"
    has_key = key in PhaseArguments.__dataclass_fields__
    return key if has_second_phase(settings) and has_key else name
