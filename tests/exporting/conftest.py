"""Exports of tiny runs, each made once; nobody changes them."""

import functools
import shutil

import pytest
import torch

from bert_recipes.config import parse_arguments
from bert_recipes.exporting import export as way
from bert_recipes.exporting.arguments import ExportArguments, check_request
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture(scope="session")
def pretrained_run(small_store, tmp_path_factory):
    """A tiny checkpoint with both pre-training heads over the store's vocabulary, and the run.yaml
    that names the store.
    """
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    tokenizer = load_tokenizer(small_store / "tokenizer")
    config = pretraining_config("tiny", vocab_size=len(tokenizer), max_position_embeddings=512)
    config.update({"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.2})
    torch.manual_seed(0)
    BertForPreTraining(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "run.yaml").write_text(
        f"store: {small_store}\nmax_seq_length: 32\nmax_eval_pairs: 7\nseed: 3\n"
    )
    return folder


@pytest.fixture(scope="session")
def runs(tiny_runs, pretrained_run):
    """Head -> run."""
    return lambda head: pretrained_run if head == "pretraining" else tiny_runs(head)


@pytest.fixture(scope="session")
def export(runs, tmp_path_factory):
    """Export a run of a head with flags of recipes/export.py; the folder and what export.json
    holds.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed (the extra `export`)")

    def make(run, *flags, folder=None):
        folder = tmp_path_factory.mktemp("export") / "out" if folder is None else folder
        argv = [
            "--model_name_or_path",
            run,
            "--output_dir",
            folder,
            "--rounds",
            1,
            "--speed_examples",
            8,
            *flags,
        ]
        (args,) = parse_arguments(
            ExportArguments, argv=list(map(str, argv)), check_first=check_request
        )
        return folder, way.export_checkpoint(args)

    return make


@pytest.fixture(scope="session")
def exported(export, runs):
    """Head and format -> folder and report, made when it is first asked for."""

    @functools.cache
    def of(head, form="onnx"):
        with pytest.MonkeyPatch.context() as patch:
            if form == "int8":
                reuse_graph(patch, of)
            return export(runs(head), "--format", form, "--max_score_drop", 100)

    return of


def reuse_graph(patch, exported):
    """For what is not about torch.onnx, which takes seconds: take the graph that `exported` has of
    the head.
    """
    original = way.export_graph

    def export_graph(model, head, folder, opset):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(way, "export_graph", original)
            known, _ = exported(head.name)
        return shutil.copyfile(known / way.MODEL_FILE, folder / way.MODEL_FILE)

    patch.setattr(way, "export_graph", export_graph)


@pytest.fixture
def known_graphs(exported, monkeypatch):
    """See `reuse_graph`."""
    reuse_graph(monkeypatch, exported)
