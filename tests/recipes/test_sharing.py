"""A run that is shared: what report, card, tracker and push leave on a Hub on loopback."""

import json
import re
from pathlib import Path

import pytest
import torch


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_repository_holds_the_model_and_all_that_tells_of_it(shared):
    local, remote = files_of(shared.run), files_of(shared.copy)
    expected = "config.json model.safetensors tokenizer.json tokenizer_config.json vocab.txt "
    expected += "run.yaml all_results.json trainer_state.json run_identity.json README.md "
    expected += "bias_probe.json report.md report.html losses.png"
    assert remote.keys() >= set(expected.split())
    pictures = set(re.findall(r"!\[[^\]]*\]\(([^)]+)\)", remote["report.md"].decode()))
    assert pictures
    assert remote.keys() >= pictures
    del remote[".gitattributes"]
    assert {name: local[name] for name in remote} == remote
    assert not [name for name in remote if name.endswith((".pt", ".bin", ".pth"))]
    assert shared.repository.private


def test_it_is_pushed_while_it_trains_and_whole_at_its_end(shared):
    history = shared.repository.history()
    steps = ["Training in progress, step 4", "Training in progress, step 2", "initial commit"]
    assert [commit.message for commit in history] == ["End of training, step 4", *steps]
    # Step 2 is another model than step 4, with the same identity, and its checkpoint is long
    # deleted.
    second, last = history[2].files, files_of(shared.copy)
    assert second["model.safetensors"].content != last["model.safetensors"]
    assert second["run_identity.json"].content == last["run_identity.json"]
    assert json.loads(second["trainer_state.json"].content)["global_step"] == 2

    local = files_of(shared.run)
    assert b"hf_writerwriterwriter" not in b"".join(local.values())
    assert not [name for name in local if ".aside" in name or name.endswith(".tmp")]
    assert b"hub_model_id: me/teller" in local["run.yaml"]


def test_what_is_printed_at_the_end_names_every_file_and_the_page(shared):
    lines = shared.printed.strip().splitlines()
    files = "model, all_results.json, report.md, report.html, losses.png, report.json, README.md: "
    assert [line for line in lines if line.startswith(files)]
    assert lines[-1] == f"on the Hub: {shared.url}/me/teller"


def test_the_card_shows_the_figures_and_is_known_as_our_own_with_the_tags(shared):
    from huggingface_hub import ModelCard

    from bert_recipes.checkpointing import may_replace_card

    text = (shared.copy / "README.md").read_text(encoding="utf-8")
    data = ModelCard(text).data
    assert data.tags == ["bert", "bert-recipes", "english"]
    assert (data.model_name, data.pipeline_tag) == ("teller", "fill-mask")
    results = read_json(shared.run / "all_results.json")
    measured = {(item.task_type, item.metric_type): item.metric_value for item in data.eval_results}
    assert measured == {
        ("fill-mask", "loss"): results["eval_mlm_loss"],
        ("fill-mask", "perplexity"): results["eval_perplexity"],
        ("fill-mask", "accuracy"): results["eval_mlm_accuracy"],
        ("text-classification", "loss"): results["eval_nsp_loss"],
        ("text-classification", "accuracy"): results["eval_nsp_accuracy"],
    }
    assert 'pipeline("fill-mask", model="me/teller")' in text
    assert "P(she)" in text
    for folder in (shared.run, shared.copy):
        assert may_replace_card(folder)


def test_the_model_from_there_is_the_model(shared):
    from transformers import AutoModelForPreTraining, AutoTokenizer

    outputs = []
    for folder in (shared.run, shared.copy):
        inputs = AutoTokenizer.from_pretrained(folder)(
            "she is an artist .", "he was [MASK] .", return_tensors="pt"
        )
        model = AutoModelForPreTraining.from_pretrained(folder).eval()
        with torch.no_grad():
            outputs.append(model(**inputs))
    assert torch.equal(outputs[0].prediction_logits, outputs[1].prediction_logits)
    assert torch.equal(outputs[0].seq_relationship_logits, outputs[1].seq_relationship_logits)


def test_the_tracker_has_both_losses(shared):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(shared.run / "runs")).Reload()
    history = read_json(shared.run / "trainer_state.json")["log_history"]
    for tag, key in (("train/mlm_loss", "mlm_loss"), ("eval/mlm_loss", "eval_mlm_loss")):
        logged = [(line["step"], line[key]) for line in history if key in line]
        steps, values = zip(*logged, strict=True)
        scalars = events.Scalars(tag)
        assert len(steps) >= 2
        assert tuple(event.step for event in scalars) == steps
        assert [event.value for event in scalars] == pytest.approx(values, rel=1e-5)
