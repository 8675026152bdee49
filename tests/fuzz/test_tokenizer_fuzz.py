"""Whatever a user gives to tokenizer/train.py: it becomes a tokenizer that opens, or one line says
what is wrong.
"""

import runpy
import sys

import pytest


pytest.importorskip("hypothesis")

from broken_inputs import corpora, mostly
from fuzz_harness import Outcomes, empty_folder, fuzz, numbers, refusal_of
from hypothesis import strategies as st

from bert_recipes.tokenization.loading import load_tokenizer


VALUES = {
    "vocab_size": (["200", "400", "30522"], ["5", "-1", "106", "9" * 15, "9" * 30, "nan", ""]),
    "min_frequency": (["1", "2"], ["0", "9" * 30, "1.5"]),
    "limit_alphabet": (["1000", "1"], ["0", "9" * 30]),
    "num_unused": (["0", "99"], ["-1", "9" * 15, "300"]),
    "lowercase": (["true", "false"], ["maybe"]),
    "strip_accents": (["true", "false", "null"], ["2"]),
    "split_cjk": (["true", "false"], [""]),
    "encoding_errors": (["replace", "replace", "strict"], ["ignore"]),
    "text_column": (["text", "text", "body"], ["", "a\0b"]),
}


@st.composite
def cases(draw):
    """Files and flags."""
    settings = {"encoding_errors": "replace"}
    for name in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True)):
        right, wrong = VALUES[name]
        settings[name] = draw(mostly(st.sampled_from(right), st.sampled_from(wrong), 12))
    return draw(corpora()), [
        word for name, value in settings.items() for word in (f"--{name}", value)
    ]


@numbers(40, 300)
def test_any_text_becomes_a_tokenizer_or_one_line(num_examples, repository, tmp_path, monkeypatch):
    outcomes = Outcomes()
    main = runpy.run_path(str(repository / "tokenizer" / "train.py"))["main"]

    def check(case):
        files, flags = case
        with empty_folder(tmp_path / "input") as folder:
            (folder / "texts").mkdir()
            for file in files:
                (folder / "texts" / file.name).write_bytes(file.data)
            output = folder / "tokenizer"
            command = [
                "train.py",
                "--files",
                str(folder / "texts"),
                "--output_dir",
                str(output),
                *flags,
            ]
            monkeypatch.setattr(sys, "argv", command)
            message = refusal_of(main)
            names = {path.name for path in folder.iterdir()} - {"texts"}
            if message is None:
                assert names == {"tokenizer"}
                tokenizer = load_tokenizer(output)
                pieces = (
                    (output / "vocab.txt")
                    .read_text(encoding="utf-8")
                    .removesuffix("\n")
                    .split("\n")
                )
                assert len(tokenizer) == len(pieces) == len(set(pieces))
                assert tokenizer.text_encoder("The red apple")
            else:
                assert not names
            outcomes.add(message)

    fuzz(cases(), num_examples, check)
    outcomes.check(num_examples)
