"""Settings of an export, and what can be refused at once; imports nothing heavy."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bert_recipes.checkpointing import check_checkpoint
from bert_recipes.errors import InputError
from bert_recipes.files import check_new_folder
from bert_recipes.settings import check, option, required


FORMATS = ("onnx", "int8")
# torch.onnx asks for onnxscript.
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# torch 2.11 and later translate to 18 and more; 23 is the last one that torch 2.13 writes.
OPSETS = (18, 23)


@dataclass
class ExportArguments:
    """What is exported, and on which inputs it is compared with the checkpoint."""

    model_name_or_path: str = required("folder of a run or checkpoint, or Hub name")
    format: str = option("onnx", "one of", choices=FORMATS)
    output_dir: str | None = option(None, "new folder; default: beside the run, RUN_FORMAT")
    task: str | None = option(None, "task to measure on; default: the run's")
    task_file: str | None = option(None, "YAML file of your own task; default: the run's")
    data_dir: str | None = option(None, "folder of the task's data; default: the run's")
    store: str | None = option(None, "pre-trained: store with held-out pairs; the run's")
    input_file: str | None = option(None, "inputs without labels instead, as for predict.py")
    text_columns: list[str] | None = option(None, "of input_file, as for predict.py")
    choice_columns: list[str] | None = option(None, "of input_file, as for predict.py")
    max_eval_examples: int = option(1000, "examples or pairs that are compared, at most", least=1)
    batch_size: int = option(32, "inputs at once", least=1)
    threads: int | None = option(None, "threads of all sides; default: torch's choice", least=1)
    speed_examples: int = option(256, "inputs of a turn of the speed measurement", least=1)
    rounds: int = option(3, "turns of each side", least=1)
    tolerance: float = option(1e-4, "largest difference of the float32 model, absolute", least=0)
    max_score_drop: float = option(2.0, "points of 100 that int8 may lose", least=0)
    opset: int = option(
        20,
        f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[1]}",
        least=OPSETS[0],
        most=OPSETS[1],
    )
    per_channel: bool | None = option(None, "int8: a scale per column; default: true")
    embeddings: bool | None = option(None, "int8: embeddings too; default: as scores")
    reduce_range: bool = option(False, "int8: 7 bits, for processors without VNNI")

    def __post_init__(self) -> None:
        check(self)
        given = [
            name
            for name in ("task", "task_file", "store", "input_file")
            if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise InputError(
                f"--{given[0]} and --{given[1]} both name inputs to compare on; give one of them"
            )
        for name in ("per_channel", "embeddings", "reduce_range"):
            if (
                self.format != "int8"
                and getattr(self, name) != type(self).__dataclass_fields__[name].default
            ):
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
        if re.fullmatch(
            r"checkpoint-\d+", source.name
        ):  # beside the run: nothing of its folder is touched
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
