"""What one process finds out is the same in all, and nobody waits for it longer than he must."""

import threading
from types import SimpleNamespace

import pytest

from bert_recipes import main_process
from bert_recipes.errors import InputError, PushError
from bert_recipes.main_process import ask_main_process, ask_main_process_for_long


@pytest.fixture(params=[1, 2], ids=["alone", "main"])
def args(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The main process of one, and of two, the other of which is not there to listen."""
    monkeypatch.setattr(main_process, "broadcast_object_list", lambda found: None)
    return SimpleNamespace(process_index=0, world_size=request.param)


def refuse(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("ask", [ask_main_process, ask_main_process_for_long])
def test_the_answer_comes_and_mistakes_are_raised(args: SimpleNamespace, ask):
    assert ask(args, lambda: "found") == "found"
    with pytest.raises(PushError, match="not on the Hub"):
        ask(args, lambda: refuse(PushError("not on the Hub")))
    with pytest.raises(InputError, match=r"a\.txt: No such file"):
        ask(args, lambda: refuse(FileNotFoundError(2, "No such file", "a.txt")))
    with pytest.raises(ZeroDivisionError):
        ask(args, lambda: 1 / 0)


@pytest.mark.parametrize("ask", [ask_main_process, ask_main_process_for_long])
def test_another_process_hears_the_answer_and_asks_nobody(monkeypatch: pytest.MonkeyPatch, ask):
    def hear(found: list[object]) -> None:
        found[0] = True if len(found) == 1 else "heard"

    monkeypatch.setattr(main_process, "broadcast_object_list", hear)
    assert ask(SimpleNamespace(process_index=1, world_size=2), lambda: pytest.fail("asked")) == "heard"


def test_others_get_signs_of_life_while_it_lasts(monkeypatch: pytest.MonkeyPatch):
    signs: list[object] = []
    enough = threading.Event()

    def count(found: list[object]) -> None:
        signs.append(list(found))
        if len(signs) == 3:
            enough.set()

    monkeypatch.setattr(main_process, "broadcast_object_list", count)
    monkeypatch.setattr(main_process, "_SECONDS_BETWEEN_SIGNS", 0.01)
    args = SimpleNamespace(process_index=0, world_size=2)
    assert ask_main_process_for_long(args, lambda: enough.wait(10)) is True
    assert signs[:3] == [[False]] * 3
    assert signs[-2:] == [[True], [True, None]]


def test_an_interrupt_does_not_wait_for_the_answer(monkeypatch: pytest.MonkeyPatch):
    end = threading.Event()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def question() -> None:
        end.wait(30)

    monkeypatch.setattr(main_process, "wait", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask_main_process_for_long(SimpleNamespace(process_index=0, world_size=2), question)
        thread = next(thread for thread in threading.enumerate() if thread.name == "question")
        assert thread.daemon  # Python does not wait for it at its end either
    finally:
        end.set()
