"""Where the scripts and their configurations are: in a checkout, or inside of an installed wheel.

Both have the folders of the repository: `recipes`, `tokenizer`, `accelerate_configs`.
"""

from pathlib import Path

from bert_recipes.errors import InputError, did_you_mean


PACKAGE = Path(__file__).resolve().parent
# setup.py puts the folders here.
SHIPPED = PACKAGE / "shipped"
IS_CHECKOUT = not SHIPPED.is_dir()
ROOT = PACKAGE.parents[1] if IS_CHECKOUT else SHIPPED


def command_hint(*, checkout: str, wheel: str) -> str:
    """Return the command that works here: a checkout has a Makefile, a wheel has `bert-recipes`."""
    return checkout if IS_CHECKOUT else wheel


def find_config(name: str, folder: Path) -> Path:
    """Return the file of a configuration.

    Args:
        name: A file; a file of the repository, as the documentation writes it; or the name of a
            file in `folder` without its ending.
        folder: Of the script's configurations.
    """
    # Not `is_file()`: `--config <(...)` is a pipe. A folder may be called as a configuration.
    typed = Path(name)
    if typed.exists() and not typed.is_dir():
        return typed
    for file in (ROOT / name, folder / f"{name}.yaml"):
        if file.is_file():
            return file
    if name.endswith((".yaml", ".yml")):
        return typed  # reading it says that it is not there
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    raise InputError(
        f"--config: there is no file {name}; {did_you_mean(name, names)}allowed: a file, or one of "
        f"{', '.join(names)}"
    )
