"""Where the scripts and their configurations are: in a checkout, or inside of an installed wheel.

Both have the folders of the repository: `recipes`, `tokenizer`, `accelerate_configs`.
"""

from pathlib import Path

from bert_recipes.errors import InputError, did_you_mean


PACKAGE = Path(__file__).resolve().parent
# setup.py puts the folders here.
SHIPPED = PACKAGE / "shipped"
ROOT = SHIPPED if SHIPPED.is_dir() else PACKAGE.parents[1]


def find_config(name: str, folder: Path) -> Path:
    """Return the file of a configuration.

    Args:
        name: A file; a file of the repository, as the documentation writes it; or the name of a
            file in `folder` without its ending.
        folder: Of the script's configurations.
    """
    if Path(name).exists():
        return Path(name)
    if (ROOT / name).is_file():
        return ROOT / name
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names and not name.endswith((".yaml", ".yml")):
        raise InputError(
            f"--config: there is no file {name}; {did_you_mean(name, names)}allowed: a file, or "
            f"one of {', '.join(names)}"
        )
    return folder / f"{name}.yaml" if name in names else Path(name)
