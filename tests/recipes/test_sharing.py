"""A run that is shared: what report, card, tracker and push leave on a Hub on loopback."""

import contextlib
import io
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


FIXTURES = Path(__file__).parents[1] / "fixtures"
ENGLISH = SimpleNamespace(**runpy.run_path(str(FIXTURES / "english_runs.py")))
HUB = SimpleNamespace(**runpy.run_path(str(FIXTURES / "hub_server.py")))
SHARED = [
    "--push_to_hub",
    "true",
    "--hub_strategy",
    "end",
    "--hub_model_id",
    "teller",
    "--hub_tags",
    "bert",
    "english",
]
SHARED += ["--report_to", "tensorboard"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The folder of a tiny run of recipes/pretrain.py, what it printed, and what a person gets from
    the Hub after it.
    """
    pytest.importorskip("tensorboard", reason="the extra `tracking` is not installed")
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import close_session

    folder = tmp_path_factory.mktemp("shared")
    store, run, said = ENGLISH.make_store(folder), folder / "storyteller", io.StringIO()
    with HUB.HubServer() as hub, pytest.MonkeyPatch.context() as patch:
        hub.take_over(patch)
        try:
            with contextlib.redirect_stdout(said):
                ENGLISH.pretrain(store, run, *SHARED)
            there = Path(snapshot_download("me/teller", cache_dir=folder / "cache"))
        finally:
            close_session()
    return SimpleNamespace(
        run=run,
        there=there,
        said=said.getvalue(),
        url=hub.url,
        repository=hub.repositories["me/teller"],
    )


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_repository_holds_the_model_and_all_that_tells_of_it(shared: SimpleNamespace):
    names = {
        path.relative_to(shared.there).as_posix()
        for path in shared.there.rglob("*")
        if path.is_file()
    }
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    } <= names
    assert {"run.yaml", "all_results.json", "trainer_state.json", "run_identity.json"} <= names
    assert {"README.md", "bias_probe.json", "report.md", "report.html"} <= names
    pictures = set(re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (shared.there / "report.md").read_text()))
    assert pictures
    assert pictures <= names
    others = names - {".gitattributes"}
    assert [
        name
        for name in others
        if (shared.there / name).read_bytes() != (shared.run / name).read_bytes()
    ] == []
    assert shared.repository.private
    messages = [commit.message for commit in shared.repository.history()]
    assert messages == ["End of training, step 4", "initial commit"]


def test_what_is_printed_at_the_end_names_every_file_and_the_page(shared: SimpleNamespace):
    lines = shared.said.strip().splitlines()
    files = "model, all_results.json, report.md, report.html, losses.png, report.json, README.md: "
    assert [line for line in lines if line.startswith(files)]
    assert lines[-1] == f"on the Hub: {shared.url}/me/teller"


def test_the_card_shows_the_figures_and_is_known_as_our_own_with_the_tags(shared: SimpleNamespace):
    from huggingface_hub import ModelCard

    from bert_recipes.checkpointing import is_generated_card

    text = (shared.there / "README.md").read_text(encoding="utf-8")
    data = ModelCard(text).data
    assert data.tags == ["bert", "bert-recipes", "english"]
    assert (data.model_name, data.pipeline_tag) == ("teller", "fill-mask")
    results = read_json(shared.run / "all_results.json")
    measured = {(each.task_type, each.metric_type): each.metric_value for each in data.eval_results}
    assert measured == {
        ("fill-mask", "loss"): results["eval_mlm_loss"],
        ("fill-mask", "perplexity"): results["eval_perplexity"],
        ("fill-mask", "accuracy"): results["eval_mlm_accuracy"],
        ("text-classification", "loss"): results["eval_nsp_loss"],
        ("text-classification", "accuracy"): results["eval_nsp_accuracy"],
    }
    assert 'pipeline("fill-mask", model="me/teller")' in text
    assert "P(she)" in text
    for folder in (shared.run, shared.there):
        assert is_generated_card(folder)


def test_the_model_from_there_is_the_model(shared: SimpleNamespace):
    from transformers import AutoModelForPreTraining, AutoTokenizer

    outputs = []
    for folder in (shared.run, shared.there):
        inputs = AutoTokenizer.from_pretrained(folder)(
            "she is an artist .", "he was [MASK] .", return_tensors="pt"
        )
        model = AutoModelForPreTraining.from_pretrained(folder).eval()
        with torch.no_grad():
            outputs.append(model(**inputs))
    assert torch.equal(outputs[0].prediction_logits, outputs[1].prediction_logits)
    assert torch.equal(outputs[0].seq_relationship_logits, outputs[1].seq_relationship_logits)


def test_the_tracker_has_both_losses(shared: SimpleNamespace):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(shared.run / "runs")).Reload()
    history = read_json(shared.run / "trainer_state.json")["log_history"]
    for tag, key in (
        ("train/mlm_loss", "mlm_loss"),
        ("train/nsp_loss", "nsp_loss"),
        ("eval/mlm_loss", "eval_mlm_loss"),
    ):
        wanted = [(line["step"], line[key]) for line in history if key in line]
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert len(wanted) >= 2
        assert [step for step, _ in found] == [step for step, _ in wanted]
        assert [value for _, value in found] == pytest.approx(
            [value for _, value in wanted], rel=1e-5
        )
