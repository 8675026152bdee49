"""Put the scripts of the checkout into the wheel; everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


# What src/bert_recipes/command.py runs, as it stands in the checkout.
SHIPPED = ("recipes", "tokenizer", "accelerate_configs", "pyproject.toml")


class BuildWithScripts(build_py):
    """Build the package, and beside its modules the scripts and their configurations."""

    def run(self):
        """Build, then copy."""
        super().run()
        if self.editable_mode:  # which finds the checkout
            return
        folder = Path(self.build_lib) / "bert_recipes" / "shipped"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in SHIPPED:
            if Path(name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "README.md")
                shutil.copytree(name, folder / name, ignore=ignored)
            else:
                shutil.copy(name, folder / name)


setup(cmdclass={"build_py": BuildWithScripts})
