"""The page has the tabs of the checkpoint, answers over HTTP what the views answer, and gives
nothing else away.
"""

import dataclasses
import http.client
import json
import re
import socket
from urllib.parse import urlsplit

import pytest

from bert_recipes.demo import page, views


pytest.importorskip("gradio", reason="the extra demo is not installed")

EVIL = "<script>alert(1)</script> <img src=x onerror=alert(2)>"
TABS = {
    None: ["fill_mask", "next_sentence"],
    "sequence_classification": ["classify"],
    "token_classification": ["tag"],
    "question_answering": ["answer"],
    "multiple_choice": ["choose"],
}


@pytest.mark.parametrize("kind", TABS)
def test_the_tabs_follow_from_the_abilities(demo_model, fine_tuned, kind):
    from bert_recipes.demo.tabs import make_tabs

    model = fine_tuned(kind) if kind else demo_model
    tabs = make_tabs(model)
    assert [tab.name for tab in tabs] == [*TABS[kind], "attention", "pieces"]
    assert ("removed the pre-training heads" in page.describe(model)) is bool(kind)
    # Nothing that is typed becomes HTML: only these components are on the page.
    for tab in tabs:
        components = {type(component).__name__ for component in (*tab.fields, *tab.results)}
        assert components <= {"Textbox", "Slider", "HighlightedText", "Dataframe", "Label", "Plot"}
    page.build_page(model)


def launch(model, **settings):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return page.launch_page(model, "127.0.0.1", port, **settings)


@pytest.fixture(scope="module")
def served(demo_model):
    """Address of the tiny checkpoint's page, whatever the environment says."""
    settings = (
        "SERVER_NAME=0.0.0.0 SHARE=True ANALYTICS_ENABLED=True "
        "ROOT_PATH=https://host.example ALLOWED_PATHS=/"
    )
    with pytest.MonkeyPatch.context() as patch:
        for setting in f"{settings} MCP_SERVER=True RUN_HISTORY=True".split():
            name, value = setting.split("=")
            patch.setenv(f"GRADIO_{name}", value)
        blocks, address = launch(dataclasses.replace(demo_model, name=EVIL))
        yield address
        blocks.close(verbose=False)


def get(url, path="/", **headers):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.text = response.read().decode("utf-8")
    connection.close()
    return response


def test_an_answer_over_http_is_that_of_the_view(served, demo_model):
    import gradio_client

    client = gradio_client.Client(served, verbose=False, analytics_enabled=False)
    label, note = client.predict("the a", "of b", api_name="/next_sentence")
    confidences = {row["label"]: row["confidence"] for row in label["confidences"]}
    probabilities, _ = views.next_sentence(demo_model, "the a", "of b")
    assert confidences == pytest.approx(probabilities)
    assert note == ""
    assert "4 tokens" in client.predict("the a <b", api_name="/pieces")[2]

    with pytest.raises(Exception, match="has 0 \\[MASK\\]"):
        client.predict("the a", 4, api_name="/fill_mask")

    with pytest.raises(Exception, match="99"):
        client.predict("the [MASK]", 99, api_name="/fill_mask")
    client.close()


def test_the_page_loads_nothing_from_elsewhere_and_gives_nothing_away(served):
    text = get(served).text
    loaded = r"""<(?:script|link|img|iframe)\b[^>]*\s(?:src|href)=["']?(?:https?:)?//[^>]*>"""
    assert not re.findall(loaded, text)
    assert "host.example" not in text
    assert "<script>alert" not in text.split("window.gradio_config")[0]
    config = json.loads(text.split("window.gradio_config = ")[1].split(";</script>")[0])
    assert config["analytics_enabled"] is False
    assert config["stylesheets"] == []
    assert config["root"] == served
    theme = get(served, "/theme.css").text
    assert "@import" not in theme
    assert "@font-face" not in theme
    assert get(served, "/gradio_api/file=/etc/hostname").status in (403, 404)
    paths = "/docs /redoc /openapi.json /monitoring/summary /gradio_api/mcp/schema"

    for path in paths.split():
        assert get(served, path).status >= 400


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/info"])
def test_a_foreign_name_that_points_here_is_not_answered(served, path):
    """DNS rebinding: the browser believes the page to be another site's, and says that site's
    name.
    """
    port = urlsplit(served).port
    names = f"host.example host.example:{port} 127.0.0.1.host.example localhost.host.example"
    for name in [*names.split(), ""]:
        refused = get(served, path, Host=name)
        assert (refused.status, refused.text) == (400, "Invalid host header"), name
    for name in (f"localhost:{port}", f"127.0.0.1:{port}", "LOCALHOST", f"[::1]:{port}"):
        assert get(served, path, Host=name).status == 200, name


def test_a_page_that_is_open_to_the_network_is_answered_under_every_name(demo_model):
    blocks, address = launch(demo_model, is_local=False)
    assert get(address, Host="host.example").status == 200
    blocks.close(verbose=False)
