r"""Turn a DeepSpeed checkpoint into a plain folder in Hub form, for `from_pretrained` and for runs
without DeepSpeed.

    python recipes/consolidate_checkpoint.py --checkpoint runs/my_bert/checkpoint-1000 \
        --output_dir my_bert_1000

Weights are float32, under stock's names. Use it on checkpoints of your own only: their parts are
DeepSpeed's pickles.
"""

from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.files import check_new_folder, write_model_folder
from bert_recipes.settings import required
from bert_recipes.tokenization.loading import load_tokenizer


@dataclass
class ConsolidateArguments:
    """What is read and written."""

    checkpoint: str = required("checkpoint-N of a run under DeepSpeed")
    output_dir: str = required("folder to write; must not exist or be empty")


def main() -> None:
    """Check, join, write."""
    (args,) = parse_arguments(ConsolidateArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.training.resume import check_zero_checkpoint, consolidate_zero_checkpoint

    checkpoint, output_dir = Path(args.checkpoint), Path(args.output_dir)
    check_new_folder(output_dir)
    check_zero_checkpoint(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    model = consolidate_zero_checkpoint(checkpoint)
    write_model_folder(output_dir, model, tokenizer)
    print(f"wrote {output_dir}: {type(model).__name__}, {model.num_parameters():,} parameters")


if __name__ == "__main__":
    run_cli(main)
