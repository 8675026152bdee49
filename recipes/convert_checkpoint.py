r"""Turn a TensorFlow checkpoint of google-research/bert into a folder in Hub form.

    python recipes/convert_checkpoint.py --tf_checkpoint uncased_L-12_H-768_A-12 \
        --output_dir my_bert

It reads bert_model.ckpt, bert_config.json and vocab.txt, without TensorFlow. recipes/pretrain.py,
recipes/finetune.py and stock transformers go on from what it writes (docs/google_checkpoints.md).
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.files import check_new_folder
from bert_recipes.google_checkpoints import find_files
from bert_recipes.settings import option, required


@dataclass
class ConvertArguments:
    """What is converted, and where to."""

    output_dir: str = required("folder to write; must not exist or be empty")
    tf_checkpoint: str = required(
        "TensorFlow checkpoint: its folder, or its path as in .../bert_model.ckpt"
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
    skip_variables: list[str] = field(
        default_factory=list,
        metadata={"help": "weights to leave out, such as cls/seq_relationship"},
    )


def main() -> None:
    """Check, convert, say what became of every variable."""
    (args,) = parse_arguments(ConvertArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.google_checkpoints import convert_to_hub

    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    output_dir = Path(args.output_dir)
    check_new_folder(output_dir)
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


if __name__ == "__main__":
    run_cli(main)
