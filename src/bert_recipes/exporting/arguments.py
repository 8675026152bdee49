"""Settings of an export, and what can be refused at once; imports nothing heavy."""

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bert_recipes.checkpointing import check_checkpoint
from bert_recipes.errors import InputError
from bert_recipes.files import check_new_folder


FORMATS = ("onnx", "int8")
# torch.onnx asks for onnxscript.
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# torch 2.11 and later translate to 18 and more; 23 is the last one that torch 2.13 writes.
OPSETS = (18, 23)


@dataclass
class ExportArguments:
    """What is exported, and on which inputs it is compared with the checkpoint."""

    model_name_or_path: str = field(metadata={"help": "folder of a run or checkpoint, or Hub name"})
    format: str = field(default="onnx", metadata={"help": f"{' or '.join(FORMATS)}"})
    output_dir: str | None = field(default=None, metadata={"help": "new folder; default: beside the run, RUN_FORMAT"})
    task: str | None = field(default=None, metadata={"help": "task to measure on; default: the run's"})
    task_file: str | None = field(default=None, metadata={"help": "YAML file of your own task; default: the run's"})
    data_dir: str | None = field(default=None, metadata={"help": "folder of the task's data; default: the run's"})
    store: str | None = field(default=None, metadata={"help": "pre-trained: store with held-out pairs; the run's"})
    input_file: str | None = field(default=None, metadata={"help": "inputs without labels instead, as for predict.py"})
    text_columns: list[str] | None = field(default=None, metadata={"help": "of input_file, as for predict.py"})
    choice_columns: list[str] | None = field(default=None, metadata={"help": "of input_file, as for predict.py"})
    max_eval_examples: int = field(default=1000, metadata={"help": "examples or pairs that are compared, at most"})
    batch_size: int = field(default=32, metadata={"help": "inputs at once"})
    threads: int | None = field(default=None, metadata={"help": "threads of all sides; default: torch's choice"})
    speed_examples: int = field(default=256, metadata={"help": "inputs of a turn of the speed measurement"})
    rounds: int = field(default=3, metadata={"help": "turns of each side"})
    tolerance: float = field(default=1e-4, metadata={"help": "largest difference of the float32 model, absolute"})
    max_score_drop: float = field(default=2.0, metadata={"help": "points of 100 that int8 may lose"})
    opset: int = field(default=20, metadata={"help": f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[1]}"})
    per_channel: bool | None = field(default=None, metadata={"help": "int8: a scale per column; default: true"})
    embeddings: bool | None = field(default=None, metadata={"help": "int8: embeddings too; default: as scores"})
    reduce_range: bool = field(default=False, metadata={"help": "int8: 7 bits, for processors without VNNI"})

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InputError(f"format is '{self.format}'; allowed: {', '.join(FORMATS)}")
        for name in ("max_eval_examples", "batch_size", "speed_examples", "rounds", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; allowed: 1 or more")
        for name in ("tolerance", "max_score_drop"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: 0 or more")
        if not OPSETS[0] <= self.opset <= OPSETS[1]:
            raise InputError(f"opset is {self.opset}; allowed: {OPSETS[0]} to {OPSETS[1]}")
        given = [name for name in ("task", "task_file", "store", "input_file") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"--{given[0]} and --{given[1]} both name inputs to compare on; give one of them")
        for name in ("per_channel", "embeddings", "reduce_range"):
            if self.format != "int8" and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise InputError(f"{name} is for --format int8")

    @property
    def folder(self) -> Path:
        """Where the export goes."""
        if self.output_dir is not None:
            return Path(self.output_dir)
        source = Path(self.model_name_or_path)
        if not source.is_dir():
            return Path("runs") / f"{source.name}_{self.format}"
        if source.name in ("", ".."):
            source = source.resolve()
        if re.fullmatch(r"checkpoint-\d+", source.name):  # beside the run: nothing of its folder is touched
            run = source.resolve().parent
            return run.parent / f"{run.name}_{source.name}_{self.format}"
        return source.parent / f"{source.name}_{self.format}"


def check_request(args: ExportArguments) -> None:
    """See that all is there that an export needs."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"an export needs {', '.join(missing)}; pip install 'bert-recipes[export]'")
    check_checkpoint(args.model_name_or_path)
    check_new_folder(args.folder)
