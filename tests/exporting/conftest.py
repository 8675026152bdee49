"""Exports of tiny runs, each made once; nobody changes them."""

import functools

import pytest

from bert_recipes.config import parse_arguments
from bert_recipes.exporting.arguments import ExportArguments, check_request
from bert_recipes.exporting.export import export_checkpoint


@pytest.fixture(scope="session")
def runs(tiny_runs, tiny_checkpoint):
    """Head -> run."""
    return lambda head: tiny_checkpoint if head == "pretraining" else tiny_runs(head)


@pytest.fixture(scope="session")
def export(tmp_path_factory):
    """Export a run with flags of recipes/export.py; the folder and what export.json holds."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed (the extra `export`)")

    def make(run, *flags, folder=None):
        folder = folder or tmp_path_factory.mktemp("export") / "out"
        argv = map(str, ["--model_name_or_path", run, "--output_dir", folder, *flags])
        (args,) = parse_arguments(ExportArguments, argv=list(argv), check_first=check_request)
        return folder, export_checkpoint(args)

    return make


@pytest.fixture(scope="session")
def exported(export, runs):
    """Head and format -> folder and report, made when it is first asked for."""

    @functools.cache
    def of(head, form="onnx"):
        run = runs(head)
        data = ["--data_dir", run.parent / "data"] if head != "pretraining" else []
        return export(run, "--format", form, *data)

    return of
