"""The command `bert-recipes`: the scripts of a checkout, or those that travel in the wheel.

    bert-recipes pretrain --config laptop --store my_store
    accelerate launch --multi_gpu -m bert_recipes pretrain --config bert_base --store my_store

Options and configurations are the scripts'.
"""

import ast
import os
import runpy
import sys
from pathlib import Path
from typing import NoReturn

import bert_recipes
from bert_recipes.errors import InputError, did_you_mean, run_cli
from bert_recipes.shipped import ROOT


TOKENIZER_SCRIPTS = {"train-tokenizer": "train.py", "compare-tokenizers": "compare.py"}
CONFIG_FOLDERS = (
    "recipes/configs/pretrain",
    "recipes/configs/finetune",
    "recipes/configs/corpus",
    "tokenizer/configs",
)
USAGE = """\
usage: bert-recipes COMMAND [--config NAME_OR_FILE] [--field value ...]
       bert-recipes COMMAND --help
"""


def find_scripts() -> dict[str, Path]:
    """Return the scripts by the names of their commands: prepare-corpus -> prepare_corpus.py."""
    scripts = {}
    for path in sorted((ROOT / "recipes").glob("*.py")):
        scripts[path.stem.replace("_", "-")] = path
    for name, file in TOKENIZER_SCRIPTS.items():
        scripts[name] = ROOT / "tokenizer" / file
    return scripts


def print_commands() -> None:
    """Print what there is, a line each."""
    print(USAGE)
    scripts = find_scripts()
    width = max(map(len, scripts))
    for name, path in scripts.items():
        docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        first_line = docstring.split("\n")[0]
        print(f"  {name:{width}}  {first_line}")
    for folder in CONFIG_FOLDERS:
        names = sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))
        print(f"\n{folder}: {', '.join(names)}")


def main() -> None:
    """Run the script that the first argument names, in this process."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print_commands()
        return
    command, *arguments = sys.argv[1:]
    if command == "--version":
        print(bert_recipes.__version__)
        return
    scripts = find_scripts()
    if command not in scripts:
        raise InputError(
            f"no command {command!r}: {did_you_mean(command, scripts)}allowed: "
            f"{', '.join(scripts)}"
        )
    # argparse shows the base name of this.
    sys.argv = [f"bert-recipes {command}", *arguments]
    # The script ends the process.
    runpy.run_path(os.fspath(scripts[command]), run_name="__main__")


def run() -> NoReturn:
    """Run the command, and end the process with its exit code."""
    run_cli(main)
