"""What the main process finds out is the same in all processes."""

from types import SimpleNamespace

import pytest

from bert_recipes.errors import InputError, PushError
from bert_recipes.training import launch
from bert_recipes.training.launch import run_on_main_process


@pytest.mark.parametrize("processes", [1, 2])
def test_the_answer_comes_and_mistakes_are_raised(monkeypatch: pytest.MonkeyPatch, processes: int):
    """The main process of one, and of two, the other of which is not there to listen."""

    def refuse(error: Exception) -> None:
        raise error

    monkeypatch.setattr(launch, "broadcast_object_list", lambda found: None)
    args = SimpleNamespace(process_index=0, world_size=processes)
    assert run_on_main_process(args, lambda: "found") == "found"
    with pytest.raises(PushError, match="not on the Hub"):
        run_on_main_process(args, lambda: refuse(PushError("not on the Hub")))
    with pytest.raises(InputError, match=r"a\.txt: No such file"):
        run_on_main_process(args, lambda: refuse(FileNotFoundError(2, "No such file", "a.txt")))
    with pytest.raises(ZeroDivisionError):
        run_on_main_process(args, lambda: 1 / 0)


def test_another_process_hears_the_answer_and_asks_nobody(monkeypatch: pytest.MonkeyPatch):
    def hear(found: list[object]) -> None:
        found[0] = "heard"

    monkeypatch.setattr(launch, "broadcast_object_list", hear)
    args = SimpleNamespace(process_index=1, world_size=2)
    assert run_on_main_process(args, lambda: pytest.fail("asked")) == "heard"
