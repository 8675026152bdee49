"""recipes/extract_features.py as a user runs it."""

import subprocess
import sys

import pyarrow.parquet as pq
import pytest


def test_one_command_writes_vectors_and_says_how_fast(call_recipe, tiny_checkpoint, tmp_path):
    texts, out = tmp_path / "in.txt", tmp_path / "out"
    texts.write_text("ab cd\n\nabc ||| de f\n", encoding="utf-8")
    flags = ("--model_name_or_path", tiny_checkpoint, "--input_file", texts, "--output_dir", out)
    said = call_recipe("extract_features", *flags)
    assert "3 inputs, 17 tokens, 0 inputs cut; " in said
    assert f"vectors: {out / 'features.parquet'}" in said
    assert pq.read_table(out / "features.parquet").num_rows == 3
    message = call_recipe("extract_features", *flags, code=1)
    assert message.splitlines()[-1].startswith(f"error: {out / 'features.parquet'} is there")


@pytest.mark.slow
def test_memory_stays_bounded_whatever_the_size_of_the_file(tiny_checkpoint, tmp_path):
    """The second file has ten times as many inputs and takes the same memory."""
    peaks = {}
    for number in (30_000, 300_000):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(f"a{row} b c d e f g h\n" for row in range(number)))
        code = (
            "import resource; from bert_recipes.config import parse_arguments;"
            "from bert_recipes.features.arguments import FeatureArguments;"
            "from bert_recipes.features import extract;"
            "extract.CHUNK_BYTES = 16_000_000;"
            "extract.extract_features(parse_arguments(FeatureArguments)[0]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
        )
        flags = ["--model_name_or_path", tiny_checkpoint, "--input_file", path]
        flags += ["--batch_size", 256, "--output_dir", tmp_path / f"out{number}"]
        command = [sys.executable, "-c", code, *map(str, flags)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
        peaks[number] = int(done.stdout.split()[-1])
    assert peaks[300_000] < peaks[30_000] + 60
