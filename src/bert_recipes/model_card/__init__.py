"""Model cards, written from the files of a run."""

from typing import Any

from bert_recipes.model_card.arguments import CardArguments


__all__ = ["CardArguments", "check_card", "name_repository", "write_card", "write_card_of_run"]


def __getattr__(name: str) -> Any:
    """Load what writes when it is asked for: it takes seconds."""
    if name not in __all__:
        raise AttributeError(name)
    from bert_recipes.model_card import writing

    return getattr(writing, name)
