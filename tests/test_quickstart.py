"""The quickstart's data is made where it is missing, by the scripts, from the first part that is missing on."""

from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.training.quickstart import FOLDER, STEPS, build_quickstart


STORE = FOLDER / "store"


@pytest.fixture
def repository_of_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts of the same names that note that they were called, and leave what the real ones leave."""
    for made, script, _ in STEPS:
        file = tmp_path / "repository" / script
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = ["import pathlib", "print(*__import__('sys').argv[1:], file=open('calls', 'a'))"]
        lines += [f"path = pathlib.Path('{FOLDER / made}')", "path.parent.mkdir(parents=True, exist_ok=True)"]
        file.write_text("\n".join([*lines, "path.touch()"]))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "repository"


def test_every_part_is_made_once(repository_of_notes: Path):
    build_quickstart(str(STORE), repository_of_notes)
    configs = [f"--config {repository_of_notes / file}" for *_, file in STEPS[1:]]
    assert Path("calls").read_text().splitlines() == ["", *configs]
    build_quickstart(str(STORE), repository_of_notes)
    assert len(Path("calls").read_text().splitlines()) == 3


def test_what_comes_after_a_missing_part_is_made_again(repository_of_notes: Path):
    build_quickstart(str(STORE), repository_of_notes)
    (FOLDER / "tokenizer" / "vocab.txt").unlink()
    (STORE / "store.json").unlink()
    Path("calls").unlink()
    build_quickstart("data/quickstart/store/", repository_of_notes)
    assert len(Path("calls").read_text().splitlines()) == 2


@pytest.mark.parametrize("store", [None, "my_store"])
def test_other_data_is_not_made(repository_of_notes: Path, store: str | None):
    build_quickstart(store, repository_of_notes)
    assert not Path("calls").exists()


def test_a_script_that_fails_ends_the_run_in_one_line(repository_of_notes: Path):
    (repository_of_notes / "tokenizer" / "train.py").write_text("raise SystemExit(3)")
    with pytest.raises(
        InputError, match=r"store is missing and could not be made: tokenizer/train\.py ended with exit code 3"
    ):
        build_quickstart(str(STORE), repository_of_notes)


def test_configurations_and_scripts_name_the_same_files(repository: Path):
    from bert_recipes.config import read_tree

    assert all((repository / script).is_file() for _, script, _ in STEPS)
    tokenizer, store = (read_tree(repository / file)[0] for *_, file in STEPS[1:])
    train = read_tree(repository / "recipes/configs/pretrain/quickstart.yaml")[0]
    assert (tokenizer["output_dir"], store["output_dir"]) == (str(FOLDER / "tokenizer"), str(STORE))
    assert train["store"] == str(STORE)
