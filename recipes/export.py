"""A checkpoint as an ONNX model that needs neither torch nor this project, in float32 or int8.

    python recipes/export.py --model_name_or_path runs/sst2 --format int8 --data_dir DATA

The folder holds model.onnx, config.json, the tokenizer, example.py, which runs the model with
onnxruntime and tokenizers alone, and export.json: the largest difference of its outputs from the
checkpoint's, and with --data_dir (or --task) what it loses in score (docs/export.md).
"""

import logging

from bert_recipes.config import parse_arguments
from bert_recipes.errors import exit_on_sigterm, run_cli
from bert_recipes.exporting.arguments import ExportArguments, check_request


def main() -> None:
    """Check, export, print what was measured."""
    (args,) = parse_arguments(ExportArguments, check_first=check_request)
    exit_on_sigterm()
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    for library in ("httpx", "torch", "onnxscript", "onnx_ir"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # Imported only now, for it takes seconds: what is out of reach has been said before.
    from bert_recipes.exporting.export import export_checkpoint, summarize

    report = export_checkpoint(args)
    print(summarize(report))
    print(f"model.onnx, export.json, example.py: {args.folder}")


if __name__ == "__main__":
    run_cli(main)
