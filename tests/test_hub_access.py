"""Whether a server is there is known within seconds, whatever the network does."""

import socket
import threading
import time

import pytest

from bert_recipes import hub_access


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)


def test_a_server_that_listens_is_there_and_one_that_refuses_is_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert hub_access.can_connect(url)
    start = time.monotonic()
    assert not hub_access.can_connect(url)
    assert time.monotonic() - start < 2, "a refusal is an answer"


def test_a_name_that_nobody_looks_up_is_not_waited_for(monkeypatch):
    """A look-up takes no timeout."""
    over = threading.Event()

    def hangs(*args, **kwargs):
        over.wait(30)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(hub_access, "_CONNECT_SECONDS", 0.3)
    start = time.monotonic()
    assert not hub_access.can_connect("https://example.invalid")
    assert time.monotonic() - start < 10
    over.set()


def test_behind_a_proxy_only_that_knows(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://127.0.0.1:9"})
    assert hub_access.can_connect("https://example.invalid")
    monkeypatch.setattr(
        "urllib.request.getproxies", lambda: {"no": "localhost"}
    )  # names what needs none
    assert not hub_access.can_connect("http://127.0.0.1:9")
