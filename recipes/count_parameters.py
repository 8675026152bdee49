"""Print the parameters of a model by component, without making its weights.

python recipes/count_parameters.py --size base --vocab_size 30000
"""

from dataclasses import dataclass

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import option


# Devlin et al. 2019, section 3: "Total Parameters".
PAPER_TOTALS = {"base": "110M", "large": "340M"}


@dataclass
class CountArguments:
    """Choose the model."""

    size: str = option("base", "tiny, mini, small, medium, base or large")
    vocab_size: int = option(30522, "30522 is the published uncased vocabulary", least=1)
    max_position_embeddings: int = option(512, "positions", least=8)
    model_type: str = option(
        "bert", "which member of the family", choices=("bert", "roberta", "albert", "electra")
    )


def main() -> None:
    """Count and print."""
    (args,) = parse_arguments(CountArguments)
    # Imported only now, for it takes seconds.
    import torch

    from bert_recipes.models.checkpoints import MEMBERS
    from bert_recipes.models.sizes import count_parameters, pretraining_config

    config = pretraining_config(
        args.size,
        vocab_size=args.vocab_size,
        max_position_embeddings=args.max_position_embeddings,
        model_type=args.model_type,
    )
    with torch.device("meta"):
        model = MEMBERS[args.model_type](config)
    layers = config.num_hidden_layers
    counts = count_parameters(model)
    print(
        f"{type(model).__name__} {args.size}: {layers} layers, hidden {config.hidden_size}, "
        f"vocabulary {args.vocab_size:,}\n"
    )
    per_layer = (
        "attention weights",
        "attention biases",
        "feed-forward weights",
        "feed-forward biases",
    )
    for name, count in counts.items():
        note = (
            f"{count // layers:>14,} a layer"
            if name in per_layer and args.model_type != "albert"
            else ""
        )
        print(f"  {name:28}{count:>14,}{note}")
    heads = sum(count for name, count in counts.items() if name.startswith("pre-training heads"))
    has_pooler = args.model_type in ("bert", "albert")
    encoder = "encoder with pooler" if has_pooler else "encoder"
    print(f"\n  {encoder:28}{sum(counts.values()) - heads:>14,}")
    print(
        f"  {'with pre-training heads':28}{sum(counts.values()):>14,}   (output matrix tied to "
        "the token embeddings)"
    )
    if args.size in PAPER_TOTALS and args.model_type == "bert":
        print(
            f"\nThe paper says {PAPER_TOTALS[args.size]}; docs/rules.md says how the totals "
            "compare."
        )


if __name__ == "__main__":
    run_cli(main)
