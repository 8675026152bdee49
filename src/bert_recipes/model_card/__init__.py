"""Model cards, written from the files of a run."""

from bert_recipes.model_card.arguments import CardArguments
from bert_recipes.model_card.writing import check_card, name_repository, write_card, write_card_of_run


__all__ = ["CardArguments", "check_card", "name_repository", "write_card", "write_card_of_run"]
