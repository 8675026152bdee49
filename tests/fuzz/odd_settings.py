"""Settings of recipes/prepare_corpus.py, right and wrong ones, as Hypothesis strategies."""

from broken_inputs import mostly
from hypothesis import strategies as st


# Flag -> values that are right, and values that are not, for the files that
# `tests/fuzz/test_corpus_fuzz.py` writes.
VALUES = {
    "document_boundary": (["auto", "blank_line", "line", "file"], ["row", "Line", "", "null", "1"]),
    "sentences": (["split", "lines"], ["true", "all", "", "~"]),
    "keep": (["all", "passages"], ["ALL", "none", ""]),
    "wrapped_lines": (["true", "false", "yes", "0"], ["2", "maybe", "", "null"]),
    "encoding_errors": (["strict", "replace"], ["ignore", "", "surrogatepass"]),
    "max_line_bytes": (
        ["16777216", "10_000"],
        ["0", "-1", "1", "1e6", "inf", "9" * 30, "9" * 5000, "x"],
    ),
    "validation_fraction": (
        ["0", "0.3", ".5", "1e-3"],
        ["1", "-0.1", "nan", "inf", "1e-400", "half", "0,5"],
    ),
    "shard_gigabytes": (
        ["1.0", "1e-9", "2e-7", "1e300"],
        ["0", "-1", "nan", "inf", ".nan", "-.inf", "1e-400", "x"],
    ),
    "seed": (["1", "-5", "9" * 40], ["1.5", "nan", "", "null", "9" * 5000]),
    "num_processes": (["1"], ["0", "-3", "1.5", "two"]),
    "overwrite": (["true", "false"], ["perhaps", "-1"]),
    "text_column": (["text"], ["body", "", "a b", "true", "x" * 3000]),
    "dataset_name": ([], ["nobody/nothing", "", "../..", "a b\nc"]),
    "dataset_split": (["train"], ["validation[:1%]", ""]),
}
OUTPUTS = [
    "store",
    "store/",
    "./store",
    "new/a/b/store",
    "link_to_empty",
    "link_to_nothing",
    "empty",
    "x/../store",
]
ODD_OUTPUTS = [
    "",
    ".",
    "..",
    "/",
    " ",
    "texts",
    "texts/a.txt",
    "texts/a.txt/store",
    "loop",
    "loop/store",
    "old",
    "link_to_old",
    "x/..",
    "n" * 250,
    "n" * 300,
    "n/" * 3000,
    "na\nme",
    "\x1b[31m",
    "/dev/null/store",
    "/proc/store",
    "~",
    "-",
]
INPUTS = [
    "texts",
    "texts/*.txt",
    "texts/**",
    "texts/a.txt texts/b.txt",
    "texts/a.txt texts/a.txt texts",
    "rows.jsonl texts",
]
ODD_INPUTS = [
    "",
    "nothing",
    "texts/*.md",
    "[",
    "vocab.txt rows.csv",
    "pipe.txt",
    "empty",
    "old",
    "loop",
    "rings",
    "n" * 300,
    "n" * 5000 + "*",
    "/dev/null",
    "/dev/zero*",
    "dangling",
    "texts/a.txt\nb.txt",
]
ODD_YAML = [
    "",
    "files",
    "- files",
    "files: [",
    "files: " + "[" * 3000,
    "{" * 5000,
    "a: &a [*a]",
    "files: &a [*a]",
    "seed: 1\nseed: 2",
    "seed: !!python/object:os.system 1",
    "seed: !!binary aGk=",
    "seed: {a: 1}",
    "sed: 1",
    "? [a, b]\n: 1",
    "<<: {seed: 1}",
    "seed:\t1",
    "\tseed: 1",
    "seed: 2001-01-01",
    "keep: [all]",
    "text_column: no",
    "seed: 1\n---\nseed: 2",
    "seed: 0x10",
    "validation_fraction: .nan",
    "\ufeffseed: 1",
    "\0",
    "\x07: 1",
    "seed: \u2028 1",
    "%YAML 9.9\n---\nseed: 1",
]


# Not the whole file system as the next one of --files, and no --help.
stray_words = st.text(max_size=8).filter(lambda text: not text.startswith(("/", "-h", "--h")))


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[str], bytes | None]:
    """Flags, and what stands in the file of --config, if there is one; about half of them right."""
    is_right = draw(st.booleans())
    flags = [
        "--output_dir",
        draw(st.sampled_from(OUTPUTS if is_right else OUTPUTS * 2 + ODD_OUTPUTS)),
    ]
    flags += [
        "--files",
        *draw(st.sampled_from(INPUTS if is_right else INPUTS * 3 + ODD_INPUTS)).split(" "),
    ]
    if draw(mostly(st.just(False), st.just(True))):
        flags += [
            "--validation_files",
            *draw(st.sampled_from(INPUTS[:4] + ODD_INPUTS * (not is_right))).split(" "),
        ]
    for name in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True)):
        right, wrong = VALUES[name]
        values = right if is_right else right + wrong
        if values:
            flags += [f"--{name}", draw(st.sampled_from(values))]
    config = None
    if not is_right:
        flags += draw(mostly(st.just([]), st.lists(stray_words, max_size=2), 6))
        config = draw(mostly(st.none(), configs(), 3))
    return flags, config


def configs() -> st.SearchStrategy[bytes]:
    """Files that are meant as YAML."""
    return st.one_of(
        st.sampled_from(ODD_YAML).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.sampled_from(ODD_YAML).map(lambda text: text.encode("utf-16", "replace")),
        st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace")),
        st.binary(max_size=30),
    )
