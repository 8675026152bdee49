"""`python -m bert_recipes` is the command `bert-recipes`."""

from bert_recipes.command import run


if __name__ == "__main__":
    run()
