"""Whatever a checkpoint's files hold: it is converted, or one line says what is wrong, and memory
stays near the files' size.
"""

import json
import tracemalloc

import pytest


pytest.importorskip("hypothesis")

from broken_inputs import damaged, mostly
from bundle_writer import encode_fixed32, write_table
from fixture_parts import CONFIG, PIECES
from fuzz_harness import Outcomes, empty_folder, fuzz, numbers, refusal_of
from hypothesis import strategies as st
from original_model import draw_variables, write_original
from safetensors.numpy import load_file

from bert_recipes.google_checkpoints import convert_to_hub, find_files
from bert_recipes.tensorflow_files import encode_bytes, encode_varint, read_table


NAME = "bert_model.ckpt"
DATA = f"{NAME}.data-00000-of-00001"
VARIABLES = draw_variables(with_adam=True)
# Far more than Python needs to say no, far less than any of the sizes that the files below speak
# of.
MOST_BYTES = 32 << 20
HUGE = [2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
numbers_of_any_size = st.one_of(st.integers(0, 300), st.sampled_from(HUGE))


@st.composite
def fields(draw: st.DrawFn, depth: int = 0) -> bytes:
    """A few fields of a message, of right and wrong types and numbers."""
    made = b""
    for _ in range(draw(st.integers(0, 5))):
        number = draw(mostly(st.integers(1, 7), st.integers(0, 2**29)))
        kind = draw(st.sampled_from(["varint", "bytes", "bytes", "fixed32", "message"]))
        if kind == "varint":
            made += encode_varint(number << 3) + encode_varint(draw(numbers_of_any_size))
        elif kind == "bytes":
            made += encode_bytes(number, draw(st.binary(max_size=9)))
        elif kind == "fixed32":
            made += encode_fixed32(number, draw(st.integers(1, 2**32 - 1)))
        elif depth < 3:
            made += encode_bytes(number, draw(fields(depth + 1)))
    return made


def change_entries(draw: st.DrawFn, folder) -> None:
    """Sound tables of entries that are not: the checksums are right, what they guard is wrong."""
    path = folder / f"{NAME}.index"
    table = read_table(path)
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(sorted(table)))
        value = table.get(key, b"")
        change = draw(st.sampled_from(["fields", "more", "damaged", "lost", "renamed", "copied"]))
        if change == "fields":
            table[key] = draw(fields())
        elif change == "more":
            table[key] = value + draw(fields())
        elif change == "damaged":
            table[key] = draw(damaged(value))
        elif change == "lost":
            table.pop(key, None)
        else:
            table[draw(st.one_of(st.binary(max_size=12), st.sampled_from(sorted(table))))] = value
            if change == "renamed":
                table.pop(key, None)
    write_table(path, table, rows_a_block=draw(st.sampled_from([8, 1000])))


def change_bytes(draw: st.DrawFn, folder) -> None:
    """Bytes lost, changed or added in one of the files."""
    path = folder / draw(
        st.sampled_from([f"{NAME}.index", f"{NAME}.index", DATA, "bert_config.json", "vocab.txt"])
    )
    path.write_bytes(draw(damaged(path.read_bytes())))


ODD = [None, True, -1, 0, 1.5, 2**31, 10**18, "8", [], {}, "\ud800\n", float("inf")]


def change_config(draw: st.DrawFn, folder) -> None:
    """A configuration with other values."""
    values = dict(CONFIG)
    for name in draw(st.lists(st.sampled_from(sorted(CONFIG)), min_size=1, max_size=3)):
        values[name] = draw(st.one_of(st.sampled_from(ODD), st.integers(1, 70)))
    (folder / "bert_config.json").write_text(json.dumps(values))


CHANGES = [change_entries, change_entries, change_bytes, change_config]


@st.composite
def changes(draw: st.DrawFn):
    """What is done to a sound checkpoint: a function that draws as it goes."""
    which = draw(mostly(st.sampled_from(CHANGES), st.none(), 2))
    return which, draw(st.data())


@numbers(60, 3000)
def test_any_checkpoint_is_converted_or_one_line(num_examples, tmp_path):
    outcomes = Outcomes()
    write_original(tmp_path / "first" / "google", VARIABLES, pieces=PIECES)
    convert(tmp_path / "first")  # what is imported and made on first use is not counted below

    def check(case):
        change, data = case
        with empty_folder(tmp_path / "input") as folder:
            write_original(folder / "google", VARIABLES, pieces=PIECES)
            if change is not None:
                change(data.draw, folder / "google")
            tracemalloc.start()
            message = refusal_of(lambda: convert(folder))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < MOST_BYTES, message
            names = {path.name for path in folder.iterdir()} - {"google"}
            assert names == ({"hub"} if message is None else set())
            outcomes.add(message)

    fuzz(changes(), num_examples, check)
    outcomes.check(num_examples, share=0.05)  # a checksum finds nearly every change


def convert(folder) -> None:
    """Convert; what comes out is whole."""
    convert_to_hub(find_files(str(folder / "google"), None, None), folder / "hub")
    load_file(folder / "hub" / "model.safetensors")
