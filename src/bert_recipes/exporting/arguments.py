"""Settings of an export, and what can be refused at once; imports nothing heavy."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bert_recipes.checkpointing import check_checkpoint
from bert_recipes.errors import InputError
from bert_recipes.files import check_new_folder
from bert_recipes.settings import check_limits, option, required


FORMATS = ("onnx", "int8")
# torch.onnx asks for onnxscript.
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# torch 2.11 and later translate to 18 and more; 23 is the last one that torch 2.13 writes.
OPSETS = (18, 23)


@dataclass
class ExportArguments:
    """Choose what is exported, and on which task its score is compared with the checkpoint's."""

    model_name_or_path: str = required("folder of a run or checkpoint, or Hub name")
    format: str = option("onnx", "one of", choices=FORMATS)
    output_dir: str | None = option(None, "new folder; default: beside the run, RUN_FORMAT")
    task: str | None = option(None, "task whose validation rows are scored; default: the run's")
    task_file: str | None = option(None, "YAML file of your own task; default: the run's")
    data_dir: str | None = option(None, "folder of the task's data")
    max_eval_examples: int = option(1000, "validation rows that are scored, at most", least=1)
    batch_size: int = option(32, "validation rows at once", least=1)
    tolerance: float = option(1e-4, "largest difference of the float32 model, absolute", least=0)
    opset: int = option(
        20,
        f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[1]}",
        least=OPSETS[0],
        most=OPSETS[1],
    )
    reduce_range: bool = option(False, "int8: 7 bits, for processors without VNNI")

    def __post_init__(self) -> None:
        check_limits(self)
        if self.task is not None and self.task_file is not None:
            raise InputError("--task and --task_file both name a task; give one of them")

    @property
    def is_scored(self) -> bool:
        """Return whether a task is named, or its data."""
        return any(value is not None for value in (self.task, self.task_file, self.data_dir))

    @property
    def folder(self) -> Path:
        """Return where the export goes: beside the run, in which nothing is touched."""
        if self.output_dir is not None:
            return Path(self.output_dir)
        source = Path(self.model_name_or_path)
        if not source.is_dir():
            return Path("runs") / f"{source.name}_{self.format}"
        if source.name in ("", ".."):
            source = source.resolve()
        if re.fullmatch(r"(abandoned-)?checkpoint-\d+", source.name):
            run = source.resolve().parent
            return run.parent / f"{run.name}_{source.name}_{self.format}"
        return source.parent / f"{source.name}_{self.format}"


def check_request(args: ExportArguments) -> None:
    """See that all is there that an export needs."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(
            f"an export needs {', '.join(missing)}; pip install 'bert-recipes[export]'"
        )
    check_checkpoint(args.model_name_or_path)
    check_new_folder(args.folder)
