r"""Turn a TensorFlow checkpoint of google-research/bert, or a DeepSpeed one, into a Hub folder.

    python recipes/convert_checkpoint.py --tf_checkpoint uncased_L-12_H-768_A-12 \
        --output_dir my_bert
    python recipes/convert_checkpoint.py \
        --deepspeed_checkpoint runs/my_bert/checkpoint-1000 --output_dir my_bert_1000

Of TensorFlow it reads bert_model.ckpt, bert_config.json and vocab.txt, without TensorFlow
(docs/google_checkpoints.md). Of DeepSpeed, convert checkpoints of your own only: their parts are
DeepSpeed's pickles. recipes/pretrain.py, recipes/finetune.py and stock transformers go on from
what it writes, float32 weights under stock's names.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import check_new_folder, write_model_folder
from bert_recipes.google_checkpoints import find_files
from bert_recipes.settings import option, required
from bert_recipes.tokenization.loading import load_tokenizer


@dataclass
class ConvertArguments:
    """Choose what is converted, and where to."""

    output_dir: str = required("folder to write; must not exist or be empty")
    tf_checkpoint: str | None = option(
        None, "TensorFlow checkpoint: its folder, or its path as in .../bert_model.ckpt"
    )
    deepspeed_checkpoint: str | None = option(None, "checkpoint-N of a run under DeepSpeed")
    bert_config_file: str | None = option(None, "TensorFlow: its configuration, if not beside it")
    vocab_file: str | None = option(None, "TensorFlow: its vocabulary, if not beside it")
    do_lower_case: bool | None = option(
        None,
        "TensorFlow: true for uncased models; default: by the folder's name or the vocabulary",
    )
    exact_gelu: bool = option(
        False, "TensorFlow: gelu in its exact form instead of the tanh form of the original's code"
    )
    labels: list[str] | None = option(None, "TensorFlow: names of a classifier's labels, in order")
    skip_variables: list[str] = field(
        default_factory=list,
        metadata={"help": "TensorFlow: weights to leave out, such as cls/seq_relationship"},
    )

    def __post_init__(self) -> None:
        if (self.tf_checkpoint is None) == (self.deepspeed_checkpoint is None):
            raise InputError("give either --tf_checkpoint FOLDER or --deepspeed_checkpoint FOLDER")


def main() -> None:
    """Check, convert, print what was written."""
    (args,) = parse_arguments(ConvertArguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    check_new_folder(Path(args.output_dir))
    if args.deepspeed_checkpoint is not None:
        convert_deepspeed(args)
    else:
        convert_tensorflow(args)


def convert_deepspeed(args: ConvertArguments) -> None:
    """Join the parts of the processes of a run."""
    # Imported only now, for it takes seconds.
    from bert_recipes.training.engines import check_zero_checkpoint, consolidate_zero_checkpoint

    checkpoint = Path(str(args.deepspeed_checkpoint))
    check_zero_checkpoint(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    model = consolidate_zero_checkpoint(checkpoint)
    write_model_folder(Path(args.output_dir), model, tokenizer)
    num_parameters = model.num_parameters()
    print(f"wrote {args.output_dir}: {type(model).__name__}, {num_parameters:,} parameters")


def convert_tensorflow(args: ConvertArguments) -> None:
    """Read every variable, and print what became of it."""
    # Imported only now, for it takes seconds.
    from bert_recipes.google_checkpoints import convert_to_hub

    files = find_files(str(args.tf_checkpoint), args.bert_config_file, args.vocab_file)
    done = convert_to_hub(
        files,
        Path(args.output_dir),
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
            f"left out: {done.num_of_optimizer} variables of the optimizer, which a new run "
            "starts from scratch"
        )
    if done.skipped:
        print(f"left out, as requested: {', '.join(done.skipped)}")
    do_lower_case = str(done.do_lower_case).lower()
    print(f"wrote {args.output_dir}: {done.architecture}, do_lower_case {do_lower_case}")


if __name__ == "__main__":
    run_cli(main)
