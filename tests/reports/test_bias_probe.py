"""The probe of pronouns and occupations: what it measures, and of whom it measures nothing."""

import json
import logging
import shutil
from pathlib import Path

import english_runs
import pytest
import torch
import transformers

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.electra import ElectraForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.reports.bias_probe import (
    OCCUPATIONS,
    TEMPLATES,
    NoProbe,
    _is_english,
    _masked_ids,
    probe_checkpoint,
    refresh_probe,
)
from bert_recipes.run_folder import PROBE_FILE
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.others import train_byte_bpe


ALL_PIECES = [*english_runs.WORDS, *english_runs.KNOWN, "person", *english_runs.PIECES]


def make_checkpoint(
    folder: Path,
    pieces: list[str],
    *,
    positions=32,
    do_lower_case=True,
) -> Path:
    """A random model, whose predictions differ from word to word."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*english_runs.SPECIAL, *pieces]) + "\n")
    tokenizer = load_tokenizer(folder / "vocab.txt", do_lower_case=do_lower_case)
    config = pretraining_config(
        "tiny",
        vocab_size=len(tokenizer),
        max_position_embeddings=positions,
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
    return make_checkpoint(tmp_path_factory.mktemp("probe") / "model", ALL_PIECES)


@pytest.mark.parametrize("pronouns", [["he", "she"], ["he", "He", "she", "She"]])
def test_the_figures_are_those_of_the_stock_pipeline(checkpoint, tmp_path, pronouns):
    """Capitals count as the same pronoun, where the tokenizer has them."""
    folder = checkpoint
    if "He" in pronouns:
        pieces = [*ALL_PIECES, "He", "She"]
        folder = make_checkpoint(tmp_path / "cased", pieces, do_lower_case=False)
    measured = probe_checkpoint(str(folder))
    assert measured["templates"] == list(TEMPLATES)
    rows = {row["occupation"]: row for row in measured["rows"]}
    # A waiter is an unknown word here, and a clerk is cut into pieces.
    assert list(rows) == ["person", *(word for word in OCCUPATIONS if word != "waiter")]
    fill = transformers.pipeline("fill-mask", model=str(folder), device="cpu")

    for phrase in ("a person", "an engineer", "a clerk"):
        shares = []
        masses = []
        for template in TEMPLATES:
            predictions = fill(template.format(phrase), targets=pronouns)
            she = sum(item["score"] for item in predictions if "she" in item["token_str"].lower())
            masses.append(sum(item["score"] for item in predictions))
            shares.append(she / masses[-1])
        row = rows[phrase.split()[1]]
        assert row["p_she"] == pytest.approx(sum(shares) / 3, abs=1e-4)
        assert row["mass"] == pytest.approx(sum(masses) / 3, rel=1e-3)
    assert len({row["p_she"] for row in measured["rows"]}) > 10


def test_byte_level_pieces_have_no_space_of_their_own_before_the_mask():
    texts = ["my friend said that she is a doctor.", "he is an engineer, and she was a clerk."] * 9
    tokenizer, _ = train_byte_bpe(texts, vocab_size=400, show_progress=False)
    for template in TEMPLATES:
        ids = _masked_ids(tokenizer, template, "doctor")
        masked = template.format("a doctor").replace("[MASK]", tokenizer.mask_token)
        assert ids == tokenizer(masked)["input_ids"]


def test_the_probe_is_for_vocabularies_of_english(tmp_path):
    """Byte-level pieces are never unknown, and WordPiece may spell any word of its script."""
    texts = [template.format("a person").replace("[MASK]", "she") for template in TEMPLATES]
    english, _ = train_byte_bpe(texts * 9, vocab_size=400, show_progress=False)
    assert _is_english(english)
    german, _ = train_byte_bpe(["sie ist eine person, sagt er"] * 9, vocab_size=300)
    assert not _is_english(german)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*letters, *(f"##{letter}" for letter in letters), "he", "she", "person", "."]
    folder = make_checkpoint(tmp_path / "model", pieces)
    assert not _is_english(load_tokenizer(folder))


@pytest.mark.parametrize(
    ("missing", "positions"),
    [
        (["she"], 32),
        (["person"], 32),
        (english_runs.KNOWN[4:] + english_runs.PIECES, 32),
        ([], 8),
    ],
    ids=["she", "baseline", "occupations", "too short"],
)
def test_a_model_without_the_words_or_the_length_has_no_probe(tmp_path, missing, positions):
    pieces = [piece for piece in ALL_PIECES if piece not in missing]
    folder = make_checkpoint(tmp_path / "model", pieces, positions=positions)
    with pytest.raises(NoProbe, match="does not know the words of the probe"):
        probe_checkpoint(str(folder))
    refresh_probe(folder)
    assert not (folder / PROBE_FILE).exists()


def test_a_masked_lm_alone_is_opened_without_the_library_s_table(
    tmp_path, checkpoint, caplog, monkeypatch
):
    tokenizer = load_tokenizer(checkpoint)
    stock = transformers.BertForMaskedLM.from_pretrained(checkpoint)
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    caplog.clear()
    assert probe_checkpoint(str(tmp_path)) == probe_checkpoint(str(checkpoint))
    assert "LOAD REPORT" not in caplog.text


def test_a_model_without_the_head_has_no_probe(tmp_path, checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    transformers.BertModel.from_pretrained(checkpoint).save_pretrained(tmp_path / "encoder")
    config = transformers.ElectraConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        embedding_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
    )
    ElectraForPreTraining(config).save_pretrained(tmp_path / "electra")

    for name, message in (("encoder", "no masked-LM head"), ("electra", "predicts no tokens")):
        tokenizer.save_pretrained(tmp_path / name)
        with pytest.raises(NoProbe, match=message):
            probe_checkpoint(str(tmp_path / name))


def test_a_model_that_reads_from_left_to_right_has_no_probe(tmp_path, checkpoint):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_decoder": True}))
    with pytest.raises(NoProbe, match="reads from left to right"):
        probe_checkpoint(str(folder))


def test_the_probe_is_made_again_for_other_weights_only(tmp_path, checkpoint):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    refresh_probe(folder)
    first = json.loads((folder / PROBE_FILE).read_text())
    marked = {**first, "rows": []}
    (folder / PROBE_FILE).write_text(json.dumps(marked))
    refresh_probe(folder)
    assert json.loads((folder / PROBE_FILE).read_text()) == marked  # these weights were probed
    (folder / PROBE_FILE).write_text(json.dumps({**marked, "weights_sha256": "0"}))
    refresh_probe(folder)
    assert json.loads((folder / PROBE_FILE).read_text()) == first
