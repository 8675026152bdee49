"""Settings of recipes/prepare_corpus.py, right and wrong ones, as Hypothesis strategies."""

from broken_inputs import mostly
from hypothesis import strategies as st


# Flag -> values that are right, and values that are not, for the files that
# `tests/fuzz/test_corpus_fuzz.py` writes.
VALUES = {
    "document_boundary": (["auto", "blank_line", "line", "file"], ["row", "Line", ""]),
    "sentences": (["split", "lines"], ["true", ""]),
    "keep": (["all", "passages"], ["ALL", ""]),
    "wrapped_lines": (["true", "false", "yes", "0"], ["2", "maybe", "null"]),
    "encoding_errors": (["strict", "replace"], ["ignore", ""]),
    "max_line_bytes": (["16777216", "10_000"], ["0", "1", "1e6", "inf", "9" * 5000, "x"]),
    "validation_fraction": (["0", "0.3", ".5"], ["1", "-0.1", "nan", "1e-400", "0,5"]),
    "shard_gigabytes": (["1.0", "1e-9", "1e300"], ["0", "nan", "-.inf", "1e-400", "x"]),
    "seed": (["1", "12345"], ["1.5", "-5", "null", "9" * 5000]),
    "num_processes": (["1"], ["0", "1.5", "two"]),
    "overwrite": (["true", "false"], ["perhaps", "-1"]),
    "text_column": (["text"], ["body", "", "true", "x" * 3000]),
    "dataset_name": ([], ["nobody/nothing", "", "../..", "a b\nc"]),
    "dataset_split": (["train"], ["validation[:1%]", ""]),
}
OUTPUTS = ["store", "store/", "new/a/b/store", "link_to_empty", "link_to_nothing", "empty"]
OUTPUTS += ["x/../store"]
ODD_OUTPUTS = ["", ".", "/", " ", "texts", "texts/a.txt/store", "loop/store", "old", "link_to_old"]
ODD_OUTPUTS += ["n" * 300, "n/" * 3000, "na\nme", "\x1b[31m", "/dev/null/store", "/proc/store", "-"]
INPUTS = ["texts", "texts/*.txt", "texts/**", "texts/a.txt texts/b.txt", "rows.jsonl texts"]
ODD_INPUTS = ["", "nothing", "texts/*.md", "[", "vocab.txt rows.csv", "pipe.txt", "empty", "old"]
ODD_INPUTS += ["loop", "rings", "n" * 5000 + "*", "/dev/null", "dangling", "texts/a.txt\nb.txt"]
ODD_YAML = [b"", b"files", b"files: [" + b"[" * 3000, b"a: &a [*a]", b"seed: 1\nseed: 2", b"sed: 1"]
ODD_YAML += [b"seed: !!python/object:os.system 1", b"seed: {a: 1}", b"keep: [all]", b"\0\xff"]


# Not the whole file system as the next one of --files, and no --help.
stray_words = st.text(max_size=8).filter(lambda text: not text.startswith(("/", "-h", "--h")))


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[str], bytes | None]:
    """Flags, and what stands in the file of --config, if there is one; about half of them right."""
    is_right = draw(st.booleans())
    outputs = OUTPUTS if is_right else OUTPUTS * 2 + ODD_OUTPUTS
    inputs = INPUTS if is_right else INPUTS * 3 + ODD_INPUTS
    flags = ["--output_dir", draw(st.sampled_from(outputs))]
    flags += ["--files", *draw(st.sampled_from(inputs)).split(" ")]
    if draw(mostly(st.just(False), st.just(True))):
        flags += ["--validation_files", *draw(st.sampled_from(inputs)).split(" ")]
    for name in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True)):
        right, wrong = VALUES[name]
        values = right if is_right else right + wrong
        if values:
            flags += [f"--{name}", draw(st.sampled_from(values))]
    config = None
    if not is_right:
        flags += draw(mostly(st.just([]), st.lists(stray_words, max_size=2), 6))
        config = draw(mostly(st.none(), st.sampled_from(ODD_YAML), 3))
    return flags, config
