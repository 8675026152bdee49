"""Files that can be made again: built once, whole or not at all."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from bert_recipes.files import build_once, remove_cached, usable_cache_dir


def build_slowly(path):
    def build(partial):
        with open(path.with_name("calls"), "a", encoding="ascii") as calls:
            calls.write("x")
        partial.write_text("half", encoding="ascii")
        time.sleep(0.3)
        partial.write_text("whole", encoding="ascii")

    build_once(path, build)
    return path.read_text(encoding="ascii")


def test_of_several_processes_one_builds_and_the_others_wait(tmp_path):
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
        contents = list(pool.map(build_slowly, [tmp_path / "file"] * 4))

    assert contents == ["whole"] * 4
    assert (tmp_path / "calls").read_text() == "x"


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(partial):
        partial.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        build_once(tmp_path / "folder" / "file", fail)
    assert [path.name for path in (tmp_path / "folder").iterdir() if path.suffix != ".lock"] == []


def test_a_file_is_built_once_and_removing_removes_all(tmp_path):
    path = tmp_path / "file"
    build_once(path, lambda partial: partial.write_text("old"))
    build_once(path, lambda partial: partial.write_text("ignored"))

    assert path.read_text() == "old"

    remove_cached(path)
    remove_cached(path)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_where_it_can_be(tmp_path, monkeypatch):
    assert usable_cache_dir(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert usable_cache_dir(None).parent == tmp_path
