"""Who may import whom, read from the source with `ast`: recipes -> layer 2 -> layer 1, and layer 1 parts apart."""

import ast
import functools
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "bert_recipes"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
SCRIPTS = sorted([*(ROOT / "recipes").glob("*.py"), *(ROOT / "tokenizer").glob("*.py")])

# Layer 1: part -> the other parts that it may import. data/ never sees a model, models/ never sees data.
LAYER_1 = {
    "browser": {"chromium", "errors"},
    "checkpointing": {"errors", "file_hash", "whole_files"},
    "chromium": {"errors"},
    "crc32c": set(),
    "emissions": {"errors"},
    "errors": {"lost_processes"},
    "field_types": set(),
    "file_hash": set(),
    "flops": set(),
    "matmul_rate": {"flops"},
    "hub": {"checkpointing", "config_file", "errors", "file_hash", "hub_access", "own_card", "whole_files"},
    "hub_access": set(),
    "config": {"config_file", "errors", "field_types", "tasks", "whole_files"},
    "config_file": {"errors", "field_types"},
    "data": {"crc32c", "errors", "protobuf_wire", "whole_files"},
    "lost_processes": set(),
    "machine": set(),
    "memory": set(),
    "metrics": {"errors"},
    "kernels": set(),
    "models": {"errors", "kernels"},
    "optimization": {"errors"},
    "own_card": {"file_hash"},
    "precision": {"errors"},
    "protobuf_wire": set(),
    "step_batches": set(),
    "stopping": {"errors"},
    "tasks": {"errors", "hub_access"},
    "tensor_bundle": {"crc32c", "errors", "protobuf_wire"},
    "tokenization": {"errors", "hub_access"},
    "whole_files": set(),
}
# Layer 2 joins the parts of layer 1.
LAYER_2 = {
    "arguments",
    "base_trainer",
    "benchmarking",
    "bias_probe",
    "checkpoint_access",
    "demo",
    "engines",
    "evaluation",
    "exporting",
    "features",
    "finetuning",
    "glue_submission",
    "glue_table",
    "google_checkpoints",
    "inspection",
    "launch_comparison",
    "launching",
    "layer_choice",
    "main_process",
    "meter",
    "model_card",
    "model_folder",
    "monitoring",
    "phases",
    "pretrained_heads",
    "pretraining",
    "pushing",
    "quickstart",
    "reports",
    "resumable_trainer",
    "run_arguments",
    "run_cost",
    "run_folder",
    "run_lock",
    "run_origin",
    "run_progress",
    "skipped_steps",
    "stock_comparison",
    "sweeps",
    "trackers",
    "trainer",
    "training",
    "typed_settings",
    "zero_checkpoints",
}

# Other people's packages, and the only files that may import them. None of these is needed where it is not named.
ONLY_IN = {
    "argparse": {"config.py"},
    "yaml": {"config.py", "config_file.py"},
    "datasets": {"data/rows.py", "metrics/evaluate_metrics.py", "tasks/hub_rows.py"},
    # An extra: only these need it, and nothing imports them but their recipes.
    "datatrove": {"data/cluster_preparation.py", "data/executors.py"}
    | {"data/deduplication.py", "data/deduplication_steps.py"},
    "evaluate": {"metrics/evaluate_metrics.py"},
    # An extra; torch.onnx asks for onnxscript by itself.
    "onnx": {"exporting/graphs.py", "exporting/quantization.py"},
    "onnxruntime": {"exporting/quantization.py", "exporting/runners.py"}
    | {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("exporting/examples/*.py")},
    "onnxscript": set(),
    "orjson": set(),
    "pickle": set(),
    # An extra, each in the one file that knows it.
    "wandb": {"trackers/wandb_tracker.py"},
    "trackio": {"trackers/trackio_tracker.py"},
    "tensorboard": set(),
    "codecarbon": {"emissions.py"},
    "PIL": {"trackers/tensorboard_tracker.py"},
    "deepspeed": {"zero_checkpoints.py"},
    # The page to try a checkpoint: an extra, imported when a page is built and served.
    "gradio": {"demo/page.py"},
    "fastapi": {"demo/server.py"},
    "starlette": {"demo/server.py"},
    "uvicorn": {"demo/server.py"},
    "matplotlib": {"benchmarking/report_plot.py", "demo/attention_drawing.py", "reports/plots.py"},
    "optuna": {"sweeps/search.py"},
    # Where the network may be reached; nothing is downloaded anywhere else.
    "huggingface_hub": {"checkpoint_access.py", "data/rows.py", "hub_access.py", "tasks/hub_rows.py"}
    | {"hub/client.py", "hub/remote.py", "hub/target.py", "hub/upload.py", "tokenization/hub_folder.py"}
    # The card's head; nothing is asked there.
    | {"model_card/arguments.py", "model_card/metadata.py", "model_card/writing.py"},
    "requests": set(),
    "socket": {"demo/server.py", "hub_access.py"},
    "urllib": {"hub_access.py"},
}

# The only files that catch whatever is raised: what they do is not worth a run. CONTRIBUTING.md says why of each.
CATCH_ALL = {
    "hub/background.py",
    "hub/upload.py",
    "model_card/writing.py",
    "reports/writing.py",
    "trackers/recording.py",
}


# What a Trainer overrides for one purpose is one class.
LONGER = {
    "src/bert_recipes/finetuning/trainer.py": 310,
    "src/bert_recipes/hub/target.py": 320,
    "src/bert_recipes/resumable_trainer.py": 350,
}


def imported(node: ast.AST) -> Iterator[str]:
    """Full names of what a statement imports; `from package import name` is taken as package.name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def all_imports(path: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(path.read_bytes())) for name in imported(node)}


@functools.cache
def imports_at_start(path: Path) -> set[str]:
    """What the import of a module imports: not in functions, not for the type checker only."""
    return {name for statement in ast.parse(path.read_bytes()).body for name in imported(statement)}


def part(module: str) -> str:
    return module.split(".")[1]


def module_name(path: Path) -> str:
    return ".".join(["bert_recipes", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def test_every_module_has_its_layer():
    parts = {part(module_name(path)) for path in MODULES}
    assert parts == LAYER_1.keys() | LAYER_2


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_layer_1_parts_do_not_know_each_other(path: Path):
    own = part(module_name(path))
    seen = {part(name) for name in all_imports(path) if name.startswith("bert_recipes.")}
    if own in LAYER_1:
        assert seen <= LAYER_1[own] | {own}


def test_no_module_imports_itself_over_others():
    names = {module_name(path): path for path in MODULES}
    graph = {name: {target for target in names if _imports(path, target, names)} for name, path in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def _imports(path: Path, target: str, names: dict[str, Path]) -> bool:
    # `from bert_recipes.data import masking` names a module, `from bert_recipes.data.masking import x` what is in one.
    seen = {name if name in names else name.rpartition(".")[0] for name in imports_at_start(path)}
    return target in seen and target != module_name(path)


@pytest.mark.parametrize("package", sorted(ONLY_IN))
def test_a_package_is_imported_in_its_named_places_only(package: str):
    places = set()
    for path in MODULES:
        if any(name.split(".")[0] == package for name in all_imports(path)):
            places.add(path.relative_to(PACKAGE).as_posix())
    assert places <= ONLY_IN[package]


@pytest.mark.parametrize("package", ["argparse", "yaml", "datasets", "evaluate"])
def test_scripts_leave_to_the_package_what_is_its_own(package: str):
    assert not [path.name for path in SCRIPTS if any(name.split(".")[0] == package for name in all_imports(path))]


def test_data_knows_no_transformers_and_pairs_know_no_torch():
    for path in (PACKAGE / "data").glob("*.py"):
        assert not any(name.startswith("transformers") for name in all_imports(path)), path.name
    for name in ("pairs", "masking", "keyed_random", "sentences", "corpus", "store"):
        assert not any(name.startswith("torch") for name in all_imports(PACKAGE / "data" / f"{name}.py")), name


def test_nobody_imports_a_script():
    scripts = {path.stem for path in SCRIPTS}
    for path in [*MODULES, PACKAGE / "__init__.py", *SCRIPTS, *ROOT.glob("tests/**/*.py")]:
        firsts = {name.split(".")[0] for name in all_imports(path)}
        assert not firsts & {"recipes", "tokenizer"}, path
        assert path not in SCRIPTS or not firsts & scripts, path


def test_no_script_bears_the_name_of_a_package():
    # A script's folder comes first on sys.path: recipes/evaluate.py would be what `import evaluate` finds.
    taken = importlib.metadata.packages_distributions().keys() | sys.stdlib_module_names
    assert not taken & {path.stem for path in SCRIPTS}


def test_no_file_is_longer_than_its_one_purpose_takes():
    files = [path for folder in ("src", "recipes", "tokenizer") for path in (ROOT / folder).rglob("*.*")]
    files = [path for path in files if path.suffix in (".py", ".cpp", ".h", ".css")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(lengths) > 100
    assert not {name: length for name, length in lengths.items() if length > LONGER.get(name, 300)}


def test_whatever_is_raised_is_caught_in_its_named_places_only():
    places = set()
    for path in [*MODULES, *SCRIPTS]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{path}, line {node.lineno}: a bare except"
                if isinstance(node.type, ast.Name) and node.type.id == "Exception":
                    places.add(path.relative_to(PACKAGE if path in MODULES else ROOT).as_posix())
    assert places == CATCH_ALL
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(f"`{place}`" in text for place in CATCH_ALL)


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
    for path in SCRIPTS:
        assert path.read_text(encoding="utf-8").endswith('if __name__ == "__main__":\n    run_cli(main)\n'), path.name


def test_importing_the_package_is_quick_and_needs_no_heavy_module():
    code = "import sys, bert_recipes; print([m for m in ('torch', 'transformers', 'pyarrow', 'yaml') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# A user who asks for help, or has mistyped a flag, does not wait for what only the work needs.
HELP_OF_ALL = """
import contextlib, io, runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    assert "usage:" in text.getvalue(), path
    heavy = {"torch"} if path.endswith(LIGHT) else {"transformers.modeling_utils", "transformers.trainer"}
    assert not heavy & set(sys.modules), (path, heavy & set(sys.modules))
"""


def test_help_loads_no_model_and_that_of_reports_no_torch():
    light = ("write_report.py", "compare_runs.py", "write_model_card.py")
    scripts = sorted(SCRIPTS, key=lambda path: not path.name.endswith(light))
    code = f"LIGHT = {light!r}\n{HELP_OF_ALL}"
    done = subprocess.run([sys.executable, "-c", code, *map(str, scripts)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
