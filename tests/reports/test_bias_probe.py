"""The probe of pronouns and occupations: what it measures, and of whom it measures nothing."""

import hashlib
import json
import runpy
from pathlib import Path

import pytest
import torch
import transformers

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.electra import ElectraForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.reports.bias_probe import (
    OCCUPATIONS,
    PROBE_FILE,
    TEMPLATES,
    NoProbe,
    probe_checkpoint,
    probe_pronouns,
    refresh_probe,
)
from bert_recipes.tokenization.loading import load_tokenizer


PIECES = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "english_runs.py"))


def make_checkpoint(folder: Path, pieces: list[str], positions: int = 32) -> Path:
    """A random model, whose answers differ from word to word."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*PIECES["SPECIAL"], *pieces]) + "\n")
    tokenizer = load_tokenizer(folder / "vocab.txt", do_lower_case=True)
    config = pretraining_config(
        "tiny", vocab_size=len(tokenizer), max_position_embeddings=positions
    )
    config.update({"hidden_size": 32, "intermediate_size": 64})
    torch.manual_seed(1)
    model = BertForPreTraining(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    pieces = [*PIECES["WORDS"], *PIECES["KNOWN"], "person", *PIECES["PIECES"]]
    return make_checkpoint(tmp_path_factory.mktemp("probe") / "model", pieces)


def test_the_figures_are_those_of_the_stock_pipeline(checkpoint):
    measured = probe_checkpoint(str(checkpoint))
    fill = transformers.pipeline("fill-mask", model=str(checkpoint), device="cpu")
    rows = {row["occupation"]: row for row in measured["rows"]}
    for word in ("person", "engineer", "nurse", "clerk"):
        shares, masses = [], []
        for template in measured["templates"]:
            article = "an" if word == "engineer" else "a"
            found = {
                item["token_str"]: item["score"]
                for item in fill(template.format(f"{article} {word}"), targets=["he", "she"])
            }
            shares.append(found["she"] / (found["he"] + found["she"]))
            masses.append(found["he"] + found["she"])
        assert rows[word]["p_she"] == pytest.approx(sum(shares) / 3, abs=1e-4)
        assert rows[word]["mass"] == pytest.approx(sum(masses) / 3, rel=1e-3)
    assert len({row["p_she"] for row in measured["rows"]}) > 10  # not one answer to all
    assert measured["templates"] == list(TEMPLATES)


def test_electras_discriminator_has_nothing_to_probe(checkpoint, tmp_path):
    folder, tokenizer = tmp_path / "electra", load_tokenizer(checkpoint)
    sizes = {
        "hidden_size": 64,
        "embedding_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
    }
    ElectraForPreTraining(
        transformers.ElectraConfig(vocab_size=len(tokenizer), **sizes)
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(NoProbe, match="predicts no tokens"):
        probe_checkpoint(str(folder))


def test_words_that_the_tokenizer_does_not_know_are_named_and_left_out(checkpoint):
    measured = probe_checkpoint(str(checkpoint))
    assert measured["skipped"] == ["waiter"]
    rows = {row["occupation"]: row for row in measured["rows"]}
    assert next(iter(rows)) == "person"
    assert rows.keys() == {"person", *OCCUPATIONS} - {"waiter"}
    assert (rows["clerk"]["pieces"], rows["nurse"]["pieces"]) == (2, 1)


@pytest.mark.parametrize(
    ("missing", "positions"),
    [
        (["she"], 32),
        (["he"], 32),
        (["person"], 32),
        (PIECES["KNOWN"][4:] + PIECES["PIECES"], 32),
        ([], 8),
    ],
    ids=["she", "he", "baseline", "occupations", "too short"],
)
def test_a_model_without_the_words_or_the_length_has_no_probe(tmp_path, missing, positions):
    pieces = [*PIECES["WORDS"], *PIECES["KNOWN"], "person", *PIECES["PIECES"]]
    folder = make_checkpoint(
        tmp_path / "model", [piece for piece in pieces if piece not in missing], positions
    )
    with pytest.raises(NoProbe, match="does not know the words of the probe"):
        probe_checkpoint(str(folder))
    refresh_probe(folder)
    assert not (folder / PROBE_FILE).exists()


def test_a_model_without_the_head_has_no_probe(tmp_path, checkpoint):
    transformers.BertModel.from_pretrained(checkpoint).save_pretrained(tmp_path)
    load_tokenizer(checkpoint).save_pretrained(tmp_path)
    with pytest.raises(NoProbe, match="no masked-LM head"):
        probe_checkpoint(str(tmp_path))


def test_capitals_count_as_the_same_pronoun(tmp_path):
    pieces = [*PIECES["WORDS"], *PIECES["KNOWN"], "person", "He", "She"]
    folder = make_checkpoint(tmp_path / "model", pieces)
    tokenizer = load_tokenizer(folder / "vocab.txt", do_lower_case=False)
    model = BertForPreTraining.from_pretrained(folder).eval()
    row = probe_pronouns(model, tokenizer)["rows"][0]
    masses = []
    for template in TEMPLATES:
        left, right = template.format("a person").split("[MASK]")
        ids = [tokenizer.encode_ids(part) for part in (left, right)]
        inputs = [
            tokenizer.cls_token_id,
            *ids[0],
            tokenizer.mask_token_id,
            *ids[1],
            tokenizer.sep_token_id,
        ]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([inputs])).prediction_logits[0, 1 + len(ids[0])]
        masses.append(
            logits.softmax(-1)[tokenizer.convert_tokens_to_ids(["he", "He", "she", "She"])]
            .sum()
            .item()
        )
    assert row["mass"] == pytest.approx(sum(masses) / 3, abs=1e-5)


def test_the_probe_is_made_again_for_other_weights_only(tmp_path, checkpoint):
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    refresh_probe(tmp_path)
    first = json.loads((tmp_path / PROBE_FILE).read_text())
    assert (
        first["weights_sha256"]
        == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    )
    marked = first | {"rows": []}
    (tmp_path / PROBE_FILE).write_text(json.dumps(marked))
    refresh_probe(tmp_path)
    assert json.loads((tmp_path / PROBE_FILE).read_text()) == marked  # these weights were probed
    (tmp_path / PROBE_FILE).write_text(json.dumps(marked | {"weights_sha256": "0"}))
    refresh_probe(tmp_path)
    assert json.loads((tmp_path / PROBE_FILE).read_text()) == first
