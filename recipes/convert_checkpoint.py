r"""Turn a TensorFlow checkpoint of google-research/bert into a folder in Hub form, and back.
TensorFlow is not needed.

    python recipes/convert_checkpoint.py --tf_checkpoint uncased_L-12_H-768_A-12 \
        --output_dir my_bert
    python recipes/convert_checkpoint.py --model_name_or_path runs/my_bert --to_tensorflow \
        --output_dir my_bert_tf

The first reads bert_model.ckpt, bert_config.json and vocab.txt; recipes/pretrain.py,
recipes/finetune.py and stock transformers go on from what it writes. The second writes these three,
for the scripts of google-research/bert (docs/google_checkpoints.md).
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import check_new_folder
from bert_recipes.google_checkpoints import find_files
from bert_recipes.settings import option, required


@dataclass
class ConvertArguments:
    """What is converted, and where to."""

    output_dir: str = required("folder to write; must not exist or be empty")
    tf_checkpoint: str | None = option(
        None, "TensorFlow checkpoint: its folder, or its path as in .../bert_model.ckpt"
    )
    bert_config_file: str | None = option(None, "its configuration, if not beside it")
    vocab_file: str | None = option(None, "its vocabulary, if not beside it")
    do_lower_case: bool | None = option(
        None, "true for uncased models; default: by the folder's name or the vocabulary"
    )
    exact_gelu: bool = option(
        False, "gelu in its exact form instead of the tanh form of the original's code"
    )
    labels: list[str] | None = option(None, "names of a classifier's labels, in order")
    model_name_or_path: str | None = option(None, "folder in Hub form, for --to_tensorflow")
    to_tensorflow: bool = option(False, "the way back: write a TensorFlow checkpoint")
    skip_variables: list[str] = field(
        default_factory=list,
        metadata={"help": "weights to leave out, such as cls/seq_relationship"},
    )

    def __post_init__(self) -> None:
        """Check what belongs together."""
        if (self.tf_checkpoint is None) == (self.model_name_or_path is None):
            raise InputError(
                "give either --tf_checkpoint, or --model_name_or_path with --to_tensorflow"
            )
        if self.to_tensorflow != (self.model_name_or_path is not None):
            raise InputError(
                "--model_name_or_path and --to_tensorflow are given together: a folder in Hub "
                "form, and the way back"
            )
        for name in ("bert_config_file", "vocab_file", "do_lower_case", "exact_gelu", "labels"):
            if (
                self.to_tensorflow
                and getattr(self, name) is not type(self).__dataclass_fields__[name].default
            ):
                raise InputError(
                    f"--{name} goes with --tf_checkpoint; a folder in Hub form has its own"
                )


def main() -> None:
    """Check, convert, say what became of every variable."""
    (args,) = parse_arguments(ConvertArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.google_checkpoints import convert_to_hub

    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    output_dir = Path(args.output_dir)
    check_new_folder(output_dir)
    if args.to_tensorflow:
        write_tensorflow(args, output_dir)
        return
    files = find_files(args.tf_checkpoint, args.bert_config_file, args.vocab_file)
    done = convert_to_hub(
        files,
        output_dir,
        do_lower_case=args.do_lower_case,
        exact_gelu=args.exact_gelu,
        labels=args.labels,
        skipped=args.skip_variables,
    )
    print(
        f"read {files.prefix}: {done.num_variables} variables, {done.num_parameters:,} parameters"
    )
    if done.num_of_optimizer:
        print(
            f"left out: {done.num_of_optimizer} variables of the optimiser, which a new run "
            "starts from scratch"
        )
    if done.skipped:
        print(f"left out, as requested: {', '.join(done.skipped)}")
    print(
        f"wrote {output_dir}: {done.architecture}, do_lower_case {str(done.do_lower_case).lower()}"
    )


def write_tensorflow(args: ConvertArguments, output_dir: Path) -> None:
    """The way back, and how the original's scripts take it."""
    from bert_recipes.google_checkpoints import convert_to_tensorflow

    done = convert_to_tensorflow(
        Path(str(args.model_name_or_path)), output_dir, skipped=args.skip_variables
    )
    print(
        f"wrote {done.prefix}: {done.num_variables} variables, {done.num_parameters:,} parameters"
    )
    if done.skipped:
        print(f"left out, as requested: {', '.join(done.skipped)}")
    if done.labels:
        print(f"labels, in the order of the classifier's rows: {', '.join(done.labels)}")
    print(
        f"--init_checkpoint={done.prefix} --bert_config_file={output_dir / 'bert_config.json'} "
        f"--vocab_file={output_dir / 'vocab.txt'} --do_lower_case={done.do_lower_case}"
    )


if __name__ == "__main__":
    run_cli(main)
