"""Write the model card of a finished run, README.md in its folder, from the run's own files.

    python recipes/write_model_card.py --run_dir runs/quickstart --license apache-2.0 --language en

recipes/pretrain.py and recipes/finetune.py write one at the end of a run; this adds what no file of
a run says (the licence, the language, what the text is), which the run's card.yaml keeps. A card
that was edited by hand is left as it is.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.reports.card_arguments import CardArguments
from bert_recipes.settings import option, required


@dataclass
class CardTargetArguments:
    """Choose the run."""

    run_dir: str = required(
        "folder of a finished run of recipes/pretrain.py or recipes/finetune.py"
    )
    overwrite: bool = option(False, "also over a README.md that was edited by hand")
    probe: bool = option(
        True, "measure bias_probe.json of an English masked-LM where it is missing"
    )


def main() -> None:
    """Check, probe, write."""
    target, card_args = parse_arguments(CardTargetArguments, CardArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.bias_probe import refresh_probe
    from bert_recipes.reports.card import check_card, write_card
    from bert_recipes.reports.facts import check_finished

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    folder = Path(target.run_dir)
    check_finished(folder)
    card = check_card(folder, card_args, overwrite=target.overwrite)
    if target.probe and card.takes_probe:
        refresh_probe(folder)
    print(write_card(folder, card_args, overwrite=target.overwrite))


if __name__ == "__main__":
    run_cli(main)
