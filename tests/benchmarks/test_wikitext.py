"""WikiText becomes a document an article, and a run of the speedrun on it leaves its result."""

import json
import logging
import sys

import numpy as np
import pytest
import speedrun
import transformers
import wikitext
from speedrun_clock import Goal

from bert_recipes.data.store import open_store


def write_wikitext(folder):
    """Sixty articles of a few words each, and ten held out."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 60), ("valid", 10)):
        lines = []
        for article in range(number):
            lines += ["", f" = Article {article} = ", ""]
            words = rng.choice(["the", "lobster", "is", "blue", "and", "small", "here"], (12, 9))
            lines += [f" {' '.join(sentence)} . " for sentence in words]
        (folder / f"wiki.{split}.raw").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_run_on_a_local_copy_ends_at_its_goal(tmp_path, monkeypatch, capsys, caplog, repository):
    caplog.set_level(logging.INFO, logger="bert_recipes")
    monkeypatch.chdir(repository)
    corpus = tmp_path / "corpus"
    flags = ["--text_dir", str(write_wikitext(tmp_path)), "--output_dir", str(corpus)]
    monkeypatch.setattr(sys, "argv", ["wikitext.py", *flags, "--vocab_size", "160"])
    wikitext.main()
    assert open_store(corpus / "store").train.num_documents == 60

    track = speedrun.Track("tiny", corpus, ["another text"], Goal(max_mlm_loss=9.0))
    monkeypatch.setattr(speedrun, "TRACKS", {"wikitext103": track})
    settings = (
        "--track wikitext103 --max_steps 4 --eval_steps 2 --logging_steps 1 --sampled_softmax true"
    )
    flags = [*settings.split(), "--output_dir", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["speedrun.py", *flags])
    speedrun.main()
    assert "seconds of training" in capsys.readouterr().out
    assert "softmax in training:" in caplog.text  # a setting of the recipe counts
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["is_reached"]
    assert not result["is_corpus_of_the_table"]
    assert [point["step"] for point in result["curve"]] == [2]
    transformers.BertForPreTraining.from_pretrained(tmp_path / "run")
