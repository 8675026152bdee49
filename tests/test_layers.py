"""Who may import whom: six floors, arrows only down, no circle; lazy and annotation imports
count.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "bert_recipes"
SCRIPTS = sorted([*(ROOT / "recipes").glob("*.py"), *(ROOT / "tokenizer").glob("*.py")])
# Scripts and what they share.
PAPER = sorted((ROOT / "paper").glob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
PAPER_SCRIPTS = [ROOT / "paper" / "pair_task.py", ROOT / "paper" / "run.py"]
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
}
# Package or module -> its floor. A floor knows those below it, its parts do not know each other.
FLOORS = {
    **dict.fromkeys(("errors", "progress"), 0),
    **dict.fromkeys(
        (
            "effects",
            "files",
            "yaml_files",
            "rows",
            "run_folder",
            "scripts",
            "tags",
            "settings",
            "hub_access",
            "shipped",
            "tensorflow_files",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "command",
            "config",
            "checkpointing",
            "data",
            "tokenization",
            "models",
            "tasks",
            "metrics",
        ),
        2,
    ),
    **dict.fromkeys(("__main__", "training", "hub", "google_checkpoints"), 3),
    **dict.fromkeys(("finetuning",), 4),
    **dict.fromkeys(("reports", "sweeps", "exporting", "demo", "features"), 5),
}


def imports_of(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("bert_recipes."):
                    yield name.name.removeprefix("bert_recipes.")
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] == "bert_recipes"
        ):
            module = (node.module or "").partition(".")[2]
            for name in node.names:
                inner = f"{module}.{name.name}".lstrip(".")
                yield inner if inner in MODULES or f"{inner}.__init__" in MODULES else module


def test_arrows_go_down_and_not_in_circles():
    circles = TopologicalSorter()
    for module, path in MODULES.items():
        if module != "__init__":
            package = module.partition(".")[0]
            for target in imports_of(path):
                other = target.partition(".")[0]
                assert other == package or FLOORS[other] < FLOORS[package], (
                    f"{module} imports {target}"
                )
                circles.add(module, target)
    circles.prepare()  # raises where there is a circle


def test_nobody_imports_a_script_and_none_bears_the_name_of_a_package():
    names = {path.stem for path in SCRIPTS}
    assert not names & {
        "evaluate",
        "datasets",
        "tokenizers",
        "accelerate",
        "transformers",
        "wandb",
        "deepspeed",
    }
    of_paper = {path.stem for path in PAPER}
    for path in [*MODULES.values(), *SCRIPTS, *PAPER]:
        scripts = {"recipes", "paper"} if path in PAPER else {"recipes", "paper", *of_paper}
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in scripts, path


def test_the_papers_tables_are_made_of_public_names():
    for path in PAPER:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not names, f"{path.name} imports {', '.join(names)}"


def test_whatever_is_raised_is_caught_in_its_named_places_only():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in [*PACKAGE.rglob("*.py"), *SCRIPTS, *PAPER, *BENCHMARKS]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{path}, line {node.lineno}: a bare except"
                if ast.unparse(node.type) == "Exception":
                    place = path.relative_to(
                        PACKAGE if PACKAGE in path.parents else ROOT
                    ).as_posix()
                    assert f"`{place}`" in text, (
                        f"{place}, line {node.lineno}: named in CONTRIBUTING.md"
                    )


def test_scripts_define_their_settings_and_little_more_than_main():
    # What more than one story could use, or a test would want to call, belongs into the package.
    for path in SCRIPTS:
        body = ast.parse(path.read_bytes()).body
        classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
        functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
        assert all(name.endswith("Arguments") for name in classes), f"{path.name}: {classes}"
        assert "main" in functions, path.name
        assert len(functions) <= 4, f"{path.name}: {functions}"


def test_every_script_ends_users_mistakes_in_one_line():
    for path in [*SCRIPTS, *PAPER_SCRIPTS]:
        assert path.read_text(encoding="utf-8").endswith(
            'if __name__ == "__main__":\n    run_cli(main)\n'
        ), path.name


def test_importing_the_package_is_quick_and_needs_no_heavy_module():
    code = "import sys, bert_recipes; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "pyarrow", "yaml"} & set(loaded)


# A user who asks for help, or has mistyped a flag, does not wait for what only the work needs.
HELP_OF_ALL = """
import contextlib, io, os, runpy, sys
for path in sys.argv[1:]:
    sys.argv, sys.path[0] = [path, "--help"], os.path.dirname(path)
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    lines = text.getvalue().splitlines()
    assert lines[0].startswith("usage:"), path
    assert len(lines) <= 60, (path, len(lines))
    heavy = {"transformers.modeling_utils", "transformers.trainer"}
    if path.endswith(LIGHT):
        heavy = {"torch"}
    assert not heavy & set(sys.modules), (path, heavy & set(sys.modules))
"""


def test_help_is_short_loads_no_model_and_that_of_reports_no_torch():
    names = "write_report write_model_card push_to_hub create_pretraining_data add_tokens demo"
    names += " collect_docstrings count_parameters export prepare_corpus "
    light = tuple(f"{name}.py" for name in names.split())
    scripts = sorted([*SCRIPTS, *PAPER_SCRIPTS], key=lambda path: not path.name.endswith(light))
    code = f"LIGHT = {light!r}\n{HELP_OF_ALL}"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, scripts)],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_new_option_is_counted():
    """Raise a number only for an option that cannot follow from another one or from the data."""
    from transformers import TrainingArguments

    from bert_recipes.config import field_types
    from bert_recipes.finetuning import arguments as tuning
    from bert_recipes.training import arguments as training

    of_library = set(field_types(TrainingArguments))
    pretraining = ["ModelArguments", "DataArguments", "PreTrainingArguments", "PhaseArguments"]
    pretraining += ["DistillationArguments"]
    finetuning = ["TaskArguments", "FineTuningArguments", "TeachingArguments"]
    for most, module, classes in ((78, training, pretraining), (53, tuning, finetuning)):
        names = {name for kind in classes for name in field_types(getattr(module, kind))}
        assert len(names - of_library) <= most


def test_every_public_name_is_there():
    import bert_recipes

    assert all(getattr(bert_recipes, name) is not None for name in bert_recipes.__all__)
