"""Measure which pronoun a masked-LM expects of a person of an occupation; the card of a pre-trained
model shows the table.

    python recipes/probe_bias.py --model_name_or_path runs/quickstart

Writes bias_probe.json into the checkpoint's folder (--output_file names another place; without one,
a checkpoint of the Hub is only printed). docs/model_card.md has the method.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import option, required


@dataclass
class ProbeArguments:
    """What is probed."""

    model_name_or_path: str = required("checkpoint with a masked-LM head: folder or Hub name")
    output_file: str | None = option(
        None, "JSON file for the figures; default: bias_probe.json in the checkpoint's folder"
    )


def main() -> None:
    """Probe, print, write."""
    (args,) = parse_arguments(ProbeArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.bias_probe import probe_checkpoint, write_probe

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    measured = probe_checkpoint(args.model_name_or_path)
    print(f"{'occupation':16}{'P(she)':>8}{'P(he) + P(she)':>16}")
    for row in measured["rows"]:
        print(f"{row['occupation']:16}{row['p_she']:8.2f}{row['mass']:16.2%}")
    folder = Path(args.model_name_or_path)
    if args.output_file is not None:
        print(write_probe(folder, measured, Path(args.output_file)))
    elif folder.is_dir():
        print(write_probe(folder, measured))


if __name__ == "__main__":
    run_cli(main)
