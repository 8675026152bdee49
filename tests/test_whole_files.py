"""Files and folders that appear as a whole, at places that are links, pipes or devices."""

import os
import stat
import threading
from functools import partial

import pytest

from bert_recipes.data.instances import check_instance_outputs, write_instances
from bert_recipes.data.prepare import check_output
from bert_recipes.errors import InputError
from bert_recipes.files import (
    atomic_dir,
    build_once,
    check_new_folder,
    put_in_place,
    write_json,
)
from bert_recipes.finetuning.prediction import replacing
from bert_recipes.tokenization.loading import (
    check_tokenizer_folder,
    load_tokenizer,
    write_tokenizer_folder,
)


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    with replacing(pipe) as file:
        file.write("a\n")
    reader.join(10)
    assert read == ["a\n"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_device_is_written_to_and_stays(tmp_path):
    """A device like /dev/null, which root would lose for the whole machine."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_text("")
    except PermissionError:
        pytest.skip("only root makes devices, and not in every container")
    write_json(device, {"a": 1})
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [device]


def test_a_folder_that_cannot_take_anothers_place_leaves_it_there(tmp_path):
    old = tmp_path / "run"
    old.mkdir()
    (old / "file").write_text("old")
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "gone", old, tmp_path / "aside")
    assert (old / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_a_link_to_a_file_stays_and_its_target_is_replaced(tmp_path):
    target = tmp_path / "disk" / "file.json"
    target.parent.mkdir()
    target.write_text("old")
    circular: list = []
    circular.append(circular)
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ValueError, match="Circular"):
        write_json(tmp_path / "link", circular)
    assert target.read_text() == "old"
    write_json(tmp_path / "link", 1)
    target.unlink()
    build_once(tmp_path / "link", lambda path: path.write_text("built"))
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "built"
    assert {path.name for path in target.parent.iterdir()} <= {"file.json", ".file.json.lock"}


def test_instance_files_keep_links_and_refuse_pipes(tmp_path):
    link, target, pipe = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    link.symlink_to(target)
    os.mkfifo(pipe)
    write_instances([], [link], max_seq_length=8, max_predictions_per_seq=1)
    assert link.is_symlink()
    assert target.is_file()
    with pytest.raises(
        InputError, match=r"c\.jsonl: is a folder, a device or a pipe; give the name of a file"
    ):
        check_instance_outputs([pipe])
    with pytest.raises(InputError, match="an output file is given twice"):
        check_instance_outputs([link, target])


def test_folders_keep_links(tmp_path, tiny_checkpoint):
    for name in ("model", "tokenizer"):
        (tmp_path / f"{name} on disk").mkdir()
        (tmp_path / name).symlink_to(f"{name} on disk")
    with atomic_dir(tmp_path / "model") as folder:
        (folder / "file").write_text("a")
    tokenizer = load_tokenizer(tiny_checkpoint)
    for _ in range(2):
        check_tokenizer_folder(tmp_path / "tokenizer", overwrite=True)
        write_tokenizer_folder(tmp_path / "tokenizer", tokenizer, {})
    assert (tmp_path / "model").is_symlink()
    assert (tmp_path / "model on disk" / "file").read_text() == "a"
    assert (tmp_path / "tokenizer").is_symlink()
    assert (tmp_path / "tokenizer on disk" / "vocab.txt").is_file()


@pytest.mark.parametrize(
    "check",
    [
        check_new_folder,
        partial(check_tokenizer_folder, overwrite=True),
        partial(check_output, overwrite=True),
    ],
    ids=["model", "tokenizer", "store"],
)
def test_a_place_where_no_folder_can_be_put_is_refused_before_any_work(
    tmp_path, monkeypatch, check
):
    (tmp_path / "file").touch()
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "volume")
    with pytest.raises(InputError, match=r"new: cannot be written: .*Not a directory"):
        check(tmp_path / "file" / "new")
    with pytest.raises(InputError, match=r"volume is a mount point.* give a folder in it"):
        check(tmp_path / "volume")
    check(tmp_path / "volume" / "models" / "new")
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "volume"}
