"""The command `bert-recipes`: the scripts of a checkout, or those that travel in the wheel.

    bert-recipes pretrain --config laptop --store my_store
    accelerate launch --multi_gpu -m bert_recipes pretrain --config bert_base --store my_store

Options and configurations are the scripts'.
"""

import ast
import sys
import types
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


def describe_commands() -> str:
    """Return what there is, a line each."""
    lines = [USAGE]
    scripts = find_scripts()
    width = max(map(len, scripts))
    for name, path in scripts.items():
        docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        first_line = docstring.split("\n")[0]
        lines.append(f"  {name:{width}}  {first_line}")
    for folder in CONFIG_FOLDERS:
        names = sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))
        lines.append(f"\n{folder}: {', '.join(names)}")
    return "\n".join(lines)


def main() -> None:
    """Run the script that the first argument names, in this process."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("-h", "--help", "--version"):
        text = bert_recipes.__version__ if command == "--version" else describe_commands()
        print(text)  # noqa: T201
        return
    scripts = find_scripts()
    if command not in scripts:
        raise InputError(
            f"no command {command!r}: {did_you_mean(command, scripts)}allowed: {', '.join(scripts)}"
        )
    sys.argv = [f"bert-recipes {command}", *arguments]  # argparse shows the first
    run_as_main(scripts[command])


def run_as_main(script: Path) -> None:
    """Run a script as `python SCRIPT` does, which ends the process; `sys.argv` stays."""
    module = types.ModuleType("__main__")
    module.__file__ = str(script)  # worker processes that are spawned import it
    sys.modules["__main__"] = module
    exec(compile(script.read_bytes(), script, "exec"), vars(module))


def run() -> NoReturn:
    """Run the command, and end the process with its exit code."""
    run_cli(main)
