"""The page over HTTP: who may reach it, what it sends along, and how it ends."""

import http.client
import json
import re
import socket
import sys
import threading
from urllib.parse import urlsplit

import pytest

from bert_recipes.demo.arguments import DemoArguments
from bert_recipes.demo.server import claim_port, serving
from bert_recipes.demo.tabs import answer, tabs_of
from bert_recipes.errors import InputError


pytest.importorskip("gradio", reason="the extra demo is not installed")

# Connections and look-ups of this process while a test watches it: an audit hook cannot be taken off again.
SEEN: list[str] | None = None


def note_connections(event: str, values: tuple) -> None:
    if SEEN is not None and event in ("socket.connect", "socket.getaddrinfo"):
        address = values[1] if event == "socket.connect" else values[:2]
        if not isinstance(address, tuple) or address[0] not in ("127.0.0.1", "::1", "localhost", None):
            SEEN.append(f"{event} {address}")


@pytest.fixture(scope="module")
def served(demo_model):
    """Address of the tiny checkpoint's page, and what was connected to while it was made."""
    global SEEN
    sys.addaudithook(note_connections)
    SEEN = []
    args = DemoArguments(model_name_or_path=demo_model.name, port=0)
    with claim_port(args) as listener, serving(args, demo_model, listener) as url:
        yield url
    SEEN = None


@pytest.fixture(scope="module")
def client(served):
    import gradio_client

    return gradio_client.Client(served, verbose=False, analytics_enabled=False)


def get(url, path="/", host=None, method="GET"):
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    response = connection.getresponse()
    response.text = response.read().decode("utf-8")
    connection.close()
    return response


def config_of(page):
    return json.loads(page.split("window.gradio_config = ")[1].split(";</script>")[0])


def test_an_answer_over_http_is_that_of_the_function(client, demo_model):
    for tab, values in zip(
        tabs_of(demo_model),
        [("the [MASK] a", 4), ("the a", "of b"), ("the a b", "", 2, 0), ("the <b>",)],
        strict=True,
    ):
        assert client.predict(*values, api_name=f"/{tab.name}") == answer(demo_model, tab, *values)


def test_a_mistake_over_http_is_a_line_and_not_an_error(client):
    assert "no [MASK]" in client.predict("the a", 4, api_name="/fill_mask")
    assert "the number of guesses is 99; give" in client.predict("the [MASK]", 99, api_name="/fill_mask")
    assert "the layer is empty; give" in client.predict("the a", "", None, 1, api_name="/attention")
    assert "20,001 characters; the page takes 20,000" in client.predict("a" * 20_001, api_name="/pieces")


def test_people_at_once_get_their_own_answers(served, demo_model):
    import gradio_client

    tab = tabs_of(demo_model)[-1]
    found: dict[int, str] = {}

    def ask(number):
        own = gradio_client.Client(served, verbose=False, analytics_enabled=False)
        for _ in range(3):
            found[number] = own.predict("a " * (number + 1), api_name="/pieces")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: answer(demo_model, tab, "a " * (number + 1)) for number in range(4)}


def test_the_page_names_nothing_elsewhere(served):
    response = get(served)
    policy = response.getheader("content-security-policy")
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert (
        re.findall(r"""<(?:script|link|img|iframe)\b[^>]*\s(?:src|href)=["']?(?:https?:)?//[^>]*>""", response.text)
        == []
    )
    config = config_of(response.text)
    assert config["analytics_enabled"] is False
    assert config["stylesheets"] == []
    theme = get(served, "/theme.css").text
    assert "@import" not in theme
    assert "@font-face" not in theme
    assert set(re.findall(r"""url\(["']?(\w+)""", theme)) <= {"data"}


def test_another_host_name_is_refused(served):
    assert get(served, host="evil.example").status == 400
    assert get(served, host=f"localhost:{urlsplit(served).port}").status == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/gradio_api/docs", "/monitoring/summary"])
def test_pages_that_load_scripts_or_tell_of_others_are_off(served, path):
    response = get(served, path)
    assert response.status >= 400 or "cdn" not in response.text
    assert response.status != 200 or path == "/gradio_api/docs"


def test_files_of_this_machine_are_not_served(served, tiny_checkpoint):
    for path in ("/etc/hostname", tiny_checkpoint / "config.json"):
        assert get(served, f"/gradio_api/file={path}").status in (403, 404)


def test_nothing_but_this_machine_was_connected_to(served, client):
    assert client.predict("the a", api_name="/pieces")
    assert SEEN == []


def test_a_port_that_is_taken_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} of 127\.0\.0\.1 is taken .*--port"):
            claim_port(DemoArguments(model_name_or_path="m", port=port))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": 70000}, "port is 70000; allowed: 1 to 65535"),
        ({"port": -1}, "port is -1"),
        ({"host": " "}, "host is empty"),
        ({"host": "no such host"}, "host no such host: no such address"),
        ({"host": "203.0.113.7", "port": 0}, "give an address of this machine"),
    ],
)
def test_a_wrong_place_is_one_line(values, message):
    with pytest.raises(InputError, match=message):
        claim_port(DemoArguments(model_name_or_path="m", **values))


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("host.example", False),
    ],
)
def test_what_reaches_the_page_from_elsewhere_is_known(host, is_loopback):
    assert DemoArguments(model_name_or_path="m", host=host).is_loopback is is_loopback


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setattr("bert_recipes.demo.arguments.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs gradio, which is not installed: .*\.\[demo\]"):
        DemoArguments(model_name_or_path="m")


def test_the_environment_cannot_open_the_page_to_others(demo_model, monkeypatch):
    for name, value in (
        ("SERVER_NAME", "0.0.0.0"),
        ("SHARE", "True"),
        ("ANALYTICS_ENABLED", "True"),
        ("ROOT_PATH", "https://host.example"),
        ("ALLOWED_PATHS", "/"),
        ("MCP_SERVER", "True"),
        ("RUN_HISTORY", "True"),
    ):
        monkeypatch.setenv(f"GRADIO_{name}", value)
    args = DemoArguments(model_name_or_path="m", port=0)
    with claim_port(args) as listener, serving(args, demo_model, listener) as url:
        assert listener.getsockname()[0] == "127.0.0.1"
        page = get(url).text
        assert get(url, "/gradio_api/file=/etc/hostname").status in (403, 404)
        assert get(url, "/gradio_api/mcp/schema").status >= 400
    assert "host.example" not in page
    config = config_of(page)
    assert config["analytics_enabled"] is False
    assert config["root"] == url
