"""Reading documents: what ends one, which files are read in which order, and what is said about bad
input.
"""

import bz2
import csv
import glob
import gzip
import io
import itertools
import json
import lzma
import os
import sys
import tempfile
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_recipes.data.corpus import (
    CorpusCounts,
    describe_files,
    find_files,
    iter_documents,
    iter_hub_documents,
)
from bert_recipes.errors import InputError
from bert_recipes.rows import Reader, read_table


TEXT = "a1\na2\n\n \n\nb1\n"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def read(*paths, **options):
    return list(iter_documents(list(paths), **options))


def error_of(*paths, **options):
    with pytest.raises(InputError) as caught:
        read(*paths, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("boundary", "wrapped_lines", "expected"),
    [
        ("auto", False, [["a1", "a2"], ["b1"]]),
        ("blank_line", False, [["a1", "a2"], ["b1"]]),
        ("line", False, [["a1"], ["a2"], ["b1"]]),
        ("file", False, [["a1", "a2", "b1"]]),
        ("blank_line", True, [["a1 a2"], ["b1"]]),
        ("file", True, [["a1 a2", "b1"]]),
    ],
)
def test_document_boundary_says_what_ends_a_document(tmp_path, boundary, wrapped_lines, expected):
    """Blank lines between documents: google-research/bert README and create_pretraining_data.py."""
    path = write(tmp_path / "a.txt", TEXT)
    assert read(path, document_boundary=boundary, wrapped_lines=wrapped_lines) == expected


def test_the_end_of_a_file_ends_a_document_unlike_in_the_original(tmp_path):
    """google-research/bert create_pretraining_data.py goes on with the document in the next
    file.
    """
    paths = [write(tmp_path / "1.txt", "a\nb\n"), write(tmp_path / "2.txt", "c\n")]

    assert read(*paths) == [["a", "b"], ["c"]]


def test_line_feeds_alone_end_lines_also_with_those_of_windows(tmp_path):
    assert read(write(tmp_path / "a.txt", "a\r\nb\r\n\r\nc")) == [["a", "b"], ["c"]]
    odd_ends = "a\u2028b\x0cc\u0085d"
    assert read(write(tmp_path / "b.txt", f"{odd_ends}\n")) == [[odd_ends]]


def test_a_byte_order_mark_is_removed_and_counted(tmp_path):
    counts = CorpusCounts()

    assert read(write(tmp_path / "a.txt", b"\xef\xbb\xbfa\n"), counts=counts) == [["a"]]
    assert counts.repaired == {"byte_order_marks_removed": 1}


ROWS = [
    {"text": "a1\n\na2", "id": 1},
    {"text": None, "id": 2},
    {"text": " \n", "id": 3},
    {"text": 'b\u00e91, "b2"', "id": 4},
]


def pack_zst(content):
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as packed:
        packed.write(content)
    return stream.getvalue().to_pybytes()


PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": pack_zst,
}


def as_csv(separator):
    file = io.StringIO()
    writer = csv.DictWriter(file, ["id", "text"], delimiter=separator)
    writer.writeheader()
    writer.writerows(ROWS)
    return file.getvalue()


LINES = "\n".join(map(json.dumps, ROWS))
TABLES = {
    ".jsonl": LINES,
    # datasets' `Dataset.to_json`, and an array as `json.dump` writes it
    ".json": LINES,
    "-array.json": json.dumps(ROWS),
    "-array.jsonl": json.dumps(ROWS),
    "-indented.json": json.dumps(ROWS, indent=1),
    "-data.json": json.dumps({"version": 1, "data": ROWS}),
    "-data-indented.json": json.dumps({"data": ROWS}, indent=1),
    ".csv": as_csv(","),
    "-excel.csv": "\ufeff" + as_csv(";"),
    "-tabs.csv": as_csv("\t"),
    ".tsv": as_csv("\t"),
}


@pytest.mark.parametrize(
    ("table", "packing"),
    [*((table, "") for table in TABLES), *((".jsonl", packing) for packing in PACKERS)],
)
def test_every_row_is_a_document_whatever_the_format(tmp_path, table, packing):
    path = write(tmp_path / f"a{table}{packing}", PACKERS[packing](TABLES[table].encode("utf-8")))
    check_rows(path)


def test_every_row_of_parquet_is_a_document(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    check_rows(tmp_path / "a.parquet")


def check_rows(path):
    counts = CorpusCounts()
    assert read(path, counts=counts) == [["a1", "a2"], ['b\u00e91, "b2"']]
    assert counts.dropped == {"rows_without_text": 2}
    assert counts.documents == 2
    assert counts.source_bytes == path.stat().st_size


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_carriage_returns_end_lines_where_nothing_else_does(tmp_path, packing, caplog):
    """Texts of the Macs before 2001; a lone one in a file with line feeds is a character of its
    line.
    """
    caplog.set_level("INFO")
    path = write(tmp_path / f"mac.txt{packing}", PACKERS[packing](b"a1\ra2\r\rb1\r"))

    assert read(path) == [["a1", "a2"], ["b1"]]
    assert "mac.txt" in caplog.text
    assert read(write(tmp_path / "b.txt", b"a\rb\nc\n")) == [["a\rb", "c"]]


def test_files_are_sorted_and_taken_once_and_others_are_logged(tmp_path, caplog):
    texts = ["b/2.txt", "b/1.txt", "a/3.jsonl"]
    for name in (*texts, "b/notes.md", "b/ids.npy", "b/.hidden.txt", ".git/x.txt"):
        write(tmp_path / name, "text")
    (tmp_path / "c.txt").symlink_to(tmp_path / "b" / "1.txt")
    files = [tmp_path / name for name in sorted(texts)]
    entries = [tmp_path / "b/2.txt", tmp_path / "b", str(tmp_path / "*/*.jsonl"), tmp_path / "b"]

    assert find_files(tmp_path) == files
    assert "4 files or folders are not read: hidden, or not of" in caplog.text
    assert find_files(entries) == files
    assert find_files(str(tmp_path / "**" / "*.txt")) == files[1:]


def test_folders_that_link_each_other_are_entered_once(tmp_path):
    """Of five, each with links to all others: 4^40 ways."""
    files = [write(tmp_path / "texts" / name / "a.txt", "a\n") for name in "abcde"]
    for file, other in itertools.permutations(files, 2):
        (file.parent / f"to_{other.parent.name}").symlink_to(other.parent)
    for file in files:
        (file.parent / "up").symlink_to(tmp_path)
    write(tmp_path / "outside.txt", "b\n")

    for entry in (tmp_path / "texts", str(tmp_path / "texts" / "**" / "*.txt")):
        assert set(map(Path.resolve, find_files(entry))) == set(files)

    # From inside one all others are reached.
    assert len(find_files(tmp_path / "texts" / "e")) == 5


PATTERNS = [
    "**/*.txt",
    "**",
    "a/**/*.txt",
    "**/b/*.txt",
    "**/b/**/*",
    "**/.h/*.txt",
    "**/.*.txt",
    "*/**/?[0-9].txt",
    "a*/**",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_what_pythons_glob_matches(tmp_path, pattern):
    names = ["x.txt", "a/x1.txt", "a/b/y2.txt", "a/b/.z.txt", ".h/h.txt", "a/.h/h2.txt"]
    for name in (*names, "b/.h/q/h.txt", "ab/c/d/e1.txt"):
        write(tmp_path / name, "text")
    matches = glob.glob(str(tmp_path / pattern), recursive=True)
    expected = sorted(path for path in matches if os.path.isfile(path))

    assert sorted(map(str, find_files(str(tmp_path / pattern)))) == expected
    assert expected


@pytest.mark.parametrize("pattern", ["**/b", "a/**/b", "a/b"])
def test_a_pattern_that_leads_to_folders_gives_their_files(tmp_path, pattern):
    for name in ("x.txt", "a/b/c/y.txt", "a/b/.z.txt", "a/b/.h/h.txt"):
        write(tmp_path / name, "text")

    assert find_files(str(tmp_path / pattern)) == [tmp_path / "a/b/c/y.txt"]


@pytest.mark.parametrize("ids", [[[1, 2], 3], [1, [2, 3]], [[[1]], [2]], [[1], None]])
def test_ids_that_are_nested_unevenly_are_refused(tmp_path, ids):
    lines = [json.dumps({"text": [[1], [2, 3]]}), json.dumps({"text": ids})]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    message = error_of(path, of_ids=True)

    assert message.startswith(f"{path}, line 2: column 'text' nests its ids unevenly")


@pytest.mark.parametrize("ids", [[[1, 2], [3]], [[[1], [2]], [[3, 4]]]])
def test_a_list_column_of_parquet_holds_ids(tmp_path, ids):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ids}), path)
    rows = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": row}) for row in ids))

    assert list(iter_documents(path, of_ids=True)) == list(iter_documents(rows, of_ids=True))
    assert "column 'text' holds list<" in error_of(path)


def test_lists_of_one_length_hold_ids_too_and_their_bytes_are_counted(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([[1, 20], [3, 4]], pa.list_(pa.int64(), 2))}), path)
    counts = CorpusCounts()

    assert list(iter_documents(path, of_ids=True, counts=counts)) == [["1 20"], ["3 4"]]
    assert counts.text_bytes == len("1 20" + "3 4")


@pytest.mark.parametrize("ids", [[[1], [], [2]], [[[1]], [[]], [[2]]]])
def test_an_empty_list_is_dropped_and_counted_as_an_empty_text_is(tmp_path, ids):
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ids}), table)
    rows = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": row}) for row in ids))

    for path in (table, rows):
        counts = CorpusCounts()
        assert list(iter_documents(path, of_ids=True, counts=counts)) == [["1"], ["2"]]
        assert counts.dropped == {"rows_without_text": 1}


@pytest.mark.parametrize("value", [1.5, "1", True])
def test_lists_of_what_is_no_whole_number_are_refused_by_their_type(tmp_path, value):
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [[value]]}), table)
    rows = write(tmp_path / "a.jsonl", json.dumps({"text": [value]}))

    message = f"column 'text' holds list<element: {pa.scalar(value).type}>, whole numbers or text"
    assert message in error_of(table, of_ids=True)
    message = f"column 'text' has {type(value).__name__} in a list; its ids are whole numbers"
    assert message in error_of(rows, of_ids=True)


def test_an_array_of_nothing_is_no_array(tmp_path):
    assert "a.npy: not an array of numbers" in error_of(write(tmp_path / "a.npy", b""), of_ids=True)


LONG_TEXT = "x" * 2**20
BOMBS = {
    "one text": {"text": ["a", LONG_TEXT]},
    "one text of a dictionary": {
        "text": pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array([LONG_TEXT, "a"]))
    },
    "a list": {"text": ["a", "b"], "ids": [[0] * 10, [0] * 200_000]},
    "nothing but lists": {"text": ["a", "b"], "ids": [[0] * 10, [0] * 3_000_000]},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_row_of_parquet_may_be_as_long_as_a_line(tmp_path, name):
    """Packed, all of these are small."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(BOMBS[name]), path, compression="zstd")

    assert path.stat().st_size < 20_000

    message = r"a\.parquet, (row 2|column 'ids.*'): this row is longer than 1,000,000 bytes"

    with pytest.raises(InputError, match=message):
        list(Reader(max_line_bytes=1_000_000).table(path).rows)

    rows = list(Reader(max_line_bytes=10**8).table(path).rows)

    assert [number for number, _ in rows] == [1, 2]


def test_rows_that_share_one_long_text_are_not_unpacked_together(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_recipes.rows._BATCH_BYTES", 2**20)
    path, text = tmp_path / "a.parquet", "x" * 2**16
    pq.write_table(pa.table({"text": [text] * 512}), path)

    assert path.stat().st_size < 50_000

    before = pa.total_allocated_bytes()
    most_bytes = 0
    lengths = []
    for _, row in read_table(path).rows:
        lengths.append(len(row["text"]))
        most_bytes = max(most_bytes, pa.total_allocated_bytes() - before)

    assert lengths == [2**16] * 512
    # All of them are 32 MiB.
    assert most_bytes < 4 * 2**20


def test_a_text_in_a_json_document_may_be_as_long_as_a_line(tmp_path):
    content = json.dumps([{"text": "a"}, {"text": LONG_TEXT}]).encode()
    path = write(tmp_path / "a.json.gz", gzip.compress(content))
    message = error_of(path, max_line_bytes=1_000_000)

    assert "row 2: this row is longer than 1,000,000 bytes" in message
    assert read(path) == [["a"], [LONG_TEXT]]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere.txt")])
def test_a_name_that_cannot_be_read_as_a_file_is_refused(tmp_path, make):
    make(tmp_path / "a.txt")

    for entry in (tmp_path, tmp_path / "a.txt"):
        assert f"{tmp_path / 'a.txt'}: not a file that can be read" in error_of(entry)


def test_descriptions_of_files_hold_no_absolute_path(tmp_path):
    contents = {"corpus/books/1.txt": "abc", "corpus/wiki/2.txt": "d"}
    files = [write(tmp_path / name, content) for name, content in contents.items()]

    assert describe_files(files) == [
        {"name": "corpus/books/1.txt", "bytes": 3},
        {"name": "corpus/wiki/2.txt", "bytes": 1},
    ]
    write(tmp_path / "private" / "3.txt", "ef")
    (tmp_path / "corpus" / "news").symlink_to(tmp_path / "private")
    (described,) = describe_files([tmp_path / "corpus" / "news" / "3.txt"])
    assert described == {"name": "news/3.txt", "bytes": 2}


@pytest.mark.parametrize(
    ("name", "content", "options", "part"),
    [
        ("a.pdf", "x", {}, "a.pdf: unknown kind of file"),
        ("a.txt", "text".encode("utf-16"), {}, "UTF-16"),
        (
            "a.txt",
            b"good\n\xc3\xa9 caf\xe9\n",
            {},
            "a.txt, line 2: not valid UTF-8 (byte 0xe9 at byte 7 of the line",
        ),
        ("a.txt", b"a\nb\0c\n", {}, "a.txt, line 2: NUL character at character 2"),
        (
            "a.txt",
            b"a\n" + b"x" * 5000,
            {"max_line_bytes": 1000},
            "a.txt, line 2: this line is longer than 1,000 bytes",
        ),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": []}\n',
            {},
            "a.jsonl, line 2: column 'text' holds list",
        ),
        ("a.jsonl", '"text"\n', {}, "a.jsonl, line 1: an object like"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', {}, "a.jsonl, line 2: broken JSON"),
        ("a.json", '[{"text": "a"}, 3]', {}, "a.json, row 2: an object like"),
        (
            "a.json",
            '{"rows": [\n]}',
            {},
            'a.json: a list of objects is expected, or one under "data", or one object a line',
        ),
        ("a.json", '[\n{"text": "a"}', {}, "a.json: broken JSON"),
        (
            "a.csv",
            "title;body\nx;y\n",
            {},
            "a.csv, line 2: no column 'text'; columns present: title, body",
        ),
        ("a.csv", 'text\n"a\nb\n', {}, "a.csv, line 2: broken CSV"),
        (
            "a.jsonl",
            '{"text": "a", "text": "b"}\n',
            {},
            "a.jsonl, line 1: column 'text' appears more than once",
        ),
        ("a.jsonl", '{"text": "a\\ud800b"}\n', {}, "a.jsonl, line 1: lone surrogate"),
        ("a.txt", "", {"document_boundary": "row"}, "allowed: auto, blank_line, line, file"),
        ("a.jsonl", "{}", {"document_boundary": "file"}, "allowed: auto, row"),
        ("a.txt", "", {"document_boundary": "line", "wrapped_lines": True}, "choose one"),
        ("a.txt", "", {"wrapped_lines": True}, "say what ends a document: --document_boundary"),
    ],
)
def test_bad_text_is_one_line_that_names_file_and_line(tmp_path, name, content, options, part):
    assert part in error_of(write(tmp_path / name, content), **options)


@pytest.mark.parametrize(
    ("table", "part"),
    [
        (
            pa.table({"title": ["x"], "body": ["y"]}),
            "no column 'text'; columns present: title, body",
        ),
        (
            pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]),
            "appears more than once",
        ),
        (pa.table({"text": [1, 2]}), "column 'text' holds int64, text expected"),
        # Pyarrow cannot turn it into a value of Python.
        (
            pa.table({"text": pa.array([2**31 - 1], pa.date32())}),
            "holds date32[day], text expected",
        ),
    ],
)
def test_a_parquet_file_without_text_is_one_line(tmp_path, table, part):
    pq.write_table(table, tmp_path / "a.parquet")
    message = error_of(tmp_path)

    assert "a.parquet: " in message
    assert part in message


# As in WikiText-103: spaces around every line, titles of articles with one sign, of sections more.
WIKITEXT = """ \n = Homarus = \n \n A lobster . \n = = Range = = \n It is blue . \n
 = Pi = 3 = \n a = b = \n= c\n = = d = \n"""


def test_an_article_begins_at_its_heading(tmp_path, caplog):
    """A section does not, and neither does an equation in a line of text."""
    wikitext = write(tmp_path / "wikitext" / "wiki.train.raw", WIKITEXT)
    assert read(wikitext, document_boundary="heading") == [
        ["= Homarus =", "A lobster .", "= = Range = =", "It is blue ."],
        ["= Pi = 3 =", "a = b =", "= c", "= = d ="],
    ]
    assert not caplog.messages
    assert len(read(wikitext)) == 3
    assert caplog.text.count("lines such as '= Title =' begin articles") == 1


def test_a_file_may_begin_within_an_article(tmp_path):
    """As parts of a file that was split by its lines; titles are known by the third of them."""
    lines = ["It is red .", "= = Range = =", "Here .", "= Homarus =", "A lobster .", "= E ="]
    write(tmp_path / "part.txt", "\n".join([*lines, "= Pi =", "= = Use = =", "A number ."]))
    assert read(tmp_path, document_boundary="heading") == [
        ["It is red ."],
        ["= = Range = =", "Here .", "= Homarus =", "A lobster .", "= E ="],
        ["= Pi =", "= = Use = =", "A number ."],
    ]


def test_lines_of_a_book_that_look_like_a_heading_are_none(tmp_path):
    books = [f"= = = PG{number} = = =\nOne .\n" for number in range(60)]
    books[3] += "= A =\n= B =\n"
    books[55] += "= 1 =\nTwo .\n= 2 =\n"
    write(tmp_path / "gutenberg.train", "".join(books))
    assert len(read(tmp_path, document_boundary="heading")) == 60


def test_rows_without_headings_are_documents_beside_texts_with_headings(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "One .\\n\\nTwo ."}\n{"text": "Three ."}\n')
    write(tmp_path / "b.txt", "= A =\nFour .\n")
    documents = read(tmp_path, document_boundary="heading")
    assert documents == [["One .", "Two ."], ["Three ."], ["= A =", "Four ."]]


def test_a_heading_is_no_line_of_a_wrapped_paragraph(tmp_path):
    write(tmp_path / "a.txt", "= A =\none\ntwo\n\nthree\n= B =\nfour\nfive\n")
    documents = read(tmp_path, document_boundary="heading", wrapped_lines=True)
    assert documents == [["= A =", "one two", "three"], ["= B =", "four five"]]


def test_books_of_babylm_begin_at_their_headings(tmp_path):
    """They have more signs than WikiText's; a file may have none."""
    books = "= = = PG1 = = =\nOne .\n\nTwo .\n= = = PG2 = = =\nThree .\n= A =\n"
    write(tmp_path / "gutenberg.train", books)
    write(tmp_path / "childes.train", "*MOT: four .\n\n*CHI: five .\n")
    assert read(tmp_path, document_boundary="heading") == [
        ["*MOT: four .", "*CHI: five ."],
        ["= = = PG1 = = =", "One .", "Two ."],
        ["= = = PG2 = = =", "Three .", "= A ="],
    ]


def test_files_of_babylm_and_wikitext_are_text(tmp_path):
    names = ["childes.dev", "childes.train", "wiki.raw", "wiki.train.tokens.gz", "b.txt"]
    for name in names:
        write(tmp_path / name, "x")
    write(tmp_path / "model.bin", "x")

    assert [path.name for path in find_files(tmp_path)] == sorted(names)


def test_missing_and_empty_paths_are_named(tmp_path):
    (tmp_path / "empty").mkdir()

    assert "no such file or folder" in error_of(tmp_path / "nothing.txt")
    assert "leads to no file that ends in" in error_of(tmp_path / "empty")
    assert "leads to no file that ends in" in error_of(tmp_path / "*.txt")
    assert "path is empty" in error_of("")
    assert "no input" in error_of()


def test_files_without_text_are_counted_also_packed_ones(tmp_path):
    counts = CorpusCounts()
    blank = write(tmp_path / "a.txt", "\n \n")
    empty = write(tmp_path / "b.txt.gz", gzip.compress(b""))

    assert read(blank, empty, counts=counts) == []
    assert counts.dropped == {"files_without_text": 2}
    assert counts.source_bytes == blank.stat().st_size + empty.stat().st_size


def test_replace_repairs_broken_utf8_and_half_a_surrogate_pair_and_counts_them(tmp_path):
    counts = CorpusCounts()
    write(tmp_path / "a.txt", b"caf\xe9 \xef\xbf\xbd \xff\xfe\na\0b\0\n")
    write(tmp_path / "b.jsonl", '{"text": "a\\ud800b"}\n')

    assert read(tmp_path, encoding_errors="replace", counts=counts) == [
        ["caf\ufffd \ufffd \ufffd\ufffd", "ab"],
        ["a\ufffdb"],
    ]
    assert counts.repaired == {"characters_replaced": 4, "nul_characters_removed": 2}


def test_a_line_may_be_as_long_as_the_limit_and_any_column_the_text(tmp_path):
    path = write(tmp_path / "a.txt", b"a\n" + b"x" * 5000)

    assert read(path, max_line_bytes=5000) == [["a", "x" * 5000]]

    path = write(tmp_path / "a.jsonl", '{"id": 1, "id": 2, "body": "y"}\n')

    assert read(path, text_column="body") == [["y"]]


def test_columns_of_any_name_and_number_are_named_in_one_short_line(tmp_path):
    row = {"a\nb": 1, "\ud800": 2, "x" * 5000: 3} | {str(number): number for number in range(1000)}
    message = error_of(write(tmp_path / "a.jsonl", json.dumps(row)))

    assert "columns present: 'a\\nb', '\\ud800', xxx" in message
    assert "and 983 more" in message
    assert len(message) < 600


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_parquet_type_of_text_is_read(tmp_path, kind):
    column = pa.array(["a", None], pa.string()).cast(kind)
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": pa.nulls(2)}), tmp_path / "b.parquet")

    assert read(tmp_path) == [["a"]]


@pytest.mark.parametrize(
    "name",
    ["a.txt.gz", "a.json.gz", "a.csv.gz", "a.jsonl.bz2", "a.txt.xz", "a.txt.zst", "a.parquet"],
)
def test_damaged_containers_are_named(tmp_path, name):
    pack = PACKERS.get(Path(name).suffix, gzip.compress)
    content = pack(os.urandom(100_000).hex().encode() + b"\n" * 9)
    for damaged in (content[: len(content) // 2], b"no such thing"):
        path = write(tmp_path / name, damaged)
        assert str(path) in error_of(path)


def test_a_row_of_json_without_the_column_is_dropped_once_another_had_it(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "a"}\n{"title": "x"}\n{"text": "b"}\n')
    counts = CorpusCounts()
    assert read(tmp_path / "a.jsonl", counts=counts) == [["a"], ["b"]]
    assert counts.dropped == {"rows_without_text": 1}
    # Each file has it, or is refused at its first row.
    write(tmp_path / "b.jsonl", '{"body": "a"}\n{"text": "b"}\n')
    assert "b.jsonl, line 1: no column 'text'; columns present: body" in error_of(tmp_path)


def test_the_hub_offline_fails_at_once_and_names_files():
    with pytest.raises(InputError, match=r"cannot be opened .*offline.*--files"):
        next(iter_hub_documents(("wikimedia/wikipedia", "20231101.en", "train")))


@pytest.fixture
def on_the_hub(monkeypatch):
    """Let the Hub have a data set of these rows."""

    def put(rows):
        stand_in = types.SimpleNamespace(load_dataset=lambda *args, **options: rows)
        monkeypatch.setitem(sys.modules, "datasets", stand_in)
        monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **options: None)

    return put


def test_rows_of_the_hub_may_be_lines_of_articles(on_the_hub):
    """Those of Salesforce/wikitext are."""
    on_the_hub([{"text": line} for line in WIKITEXT.splitlines(keepends=True)])
    counts = CorpusCounts()
    dataset = ("Salesforce/wikitext", "wikitext-103-raw-v1", "train")
    documents = list(iter_hub_documents(dataset, document_boundary="heading", counts=counts))
    assert [document[0] for document in documents] == ["= Homarus =", "= Pi = 3 ="]
    assert counts.documents == 2


def test_rows_of_a_table_may_be_lines_of_articles(tmp_path):
    rows = [{"text": line} for line in WIKITEXT.splitlines(keepends=True)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "test-00000.parquet")
    documents = read(tmp_path, document_boundary="heading")
    assert [document[0] for document in documents] == ["= Homarus =", "= Pi = 3 ="]


def test_rows_of_the_hub_are_documents(on_the_hub):
    on_the_hub([{"text": "a1\n\na2"}, {"text": ""}, {"text": "b1"}])
    counts = CorpusCounts()

    dataset = ("owner/name", None, "train")

    assert list(iter_hub_documents(dataset, counts=counts)) == [["a1", "a2"], ["b1"]]
    assert counts.dropped == {"rows_without_text": 1}
    with pytest.raises(InputError, match="row 1: no column 'body'; columns present: text"):
        next(iter_hub_documents(dataset, text_column="body"))


@pytest.fixture
def closed(tmp_path):
    """A folder with a subfolder that cannot be listed, as its owner meets it; for root permissions
    do not hold.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "a" / "1.txt", "a")
        write(folder / "b" / "2.txt", "b")
        folder.chmod(0o755)
        (folder / "b").chmod(0o000)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if was_root:
                os.seteuid(0)
            (folder / "b").chmod(0o755)


@pytest.mark.parametrize("pattern", ["", "*/*.txt", "**/*.txt", "**", "[ab]/*"])
def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out(closed, pattern):
    """`os.walk` and `glob` pass over it without a word: half of a corpus would be missing."""
    assert f"{closed / 'b'}" in error_of(closed / pattern)
    assert "this folder cannot be read (Permission denied)" in error_of(closed / pattern)


def test_a_folder_that_a_pattern_does_not_look_into_may_be_closed(closed):
    assert find_files(str(closed / "a" / "*.txt")) == [closed / "a" / "1.txt"]
    assert find_files(str(closed / "a*" / "*.txt")) == [closed / "a" / "1.txt"]


@pytest.mark.parametrize(
    "rows", [[{"text": "one", "data": []}], [{"data": [{"n": 1}], "text": "one"}] * 2]
)
def test_a_row_may_have_a_column_called_data(tmp_path, rows):
    """A list under "data" makes a document of a file only where nothing says that it is a row."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(iter_documents(file)) == [["one"]] * len(rows)
