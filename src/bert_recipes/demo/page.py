"""The page itself: the only place that knows Gradio."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from bert_recipes.demo.model import DemoModel
from bert_recipes.demo.tabs import Field, Tab, answer, first_answer, tabs_of
from bert_recipes.demo.views import show_header


# Fonts that the machine has: Gradio's own themes bring theirs along or fetch them.
_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONOSPACE = ("ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")
# FastAPI's pages of documentation load their scripts from elsewhere.
_NO_DOCUMENTATION = {"docs_url": None, "redoc_url": None, "openapi_url": None}


def _load_gradio() -> Any:
    """Import Gradio with its analytics off, whatever the environment says."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio

    return gradio


def build_page(model: DemoModel) -> Any:
    """Build the page of a checkpoint.

    Args:
        model: The checkpoint; its examples are answered now, so that a page that is opened has something to show.

    Returns:
        `gradio.Blocks`.
    """
    gradio = _load_gradio()
    with gradio.Blocks(title=f"{model.name} - bert-recipes", analytics_enabled=False) as page:
        gradio.HTML(show_header(model))
        with gradio.Tabs():
            for tab in tabs_of(model):
                with gradio.Tab(tab.title, id=tab.name, elem_id=f"tab-{tab.name}"):
                    _fill_tab(gradio, model, tab)
    # Calls wait for each other anyway (`answer`); beyond this many they are refused instead of kept waiting.
    page.queue(max_size=64, default_concurrency_limit=1)
    return page


def _fill_tab(gradio: Any, model: DemoModel, tab: Tab) -> None:
    gradio.HTML(f'<p class="bd-hint">{tab.hint}</p>')
    fields = []
    # Texts beside each other, and what is set below them.
    for is_slider in (False, True):
        row = [(number, field) for number, field in enumerate(tab.fields) if (field.limits is not None) == is_slider]
        if row:
            with gradio.Row(equal_height=True):
                fields += [_field(gradio, tab, number, field) for number, field in row]
    button = gradio.Button(tab.button, variant="primary", elem_id=f"{tab.name}-button")
    result = gradio.HTML(first_answer(model, tab), elem_id=f"{tab.name}-result", elem_classes="bd-result")
    events = {"fn": functools.partial(answer, model, tab), "inputs": fields, "outputs": result}
    # Values come as the browser sends them: `answer` checks them and says in one line what is wrong.
    events |= {"show_progress": "minimal", "preprocess": False}
    button.click(api_name=tab.name, **events)
    for field, component in zip(tab.fields, fields, strict=True):
        if field.limits is None:
            component.submit(api_visibility="private", **events)
        else:
            # Only the last of many values that a slider is drawn over.
            component.change(api_visibility="private", trigger_mode="always_last", **events)


def _field(gradio: Any, tab: Tab, number: int, field: Field) -> Any:
    name = f"{tab.name}-{number}"
    if field.limits is not None:
        least, most = field.limits
        # A slider of one value cannot be drawn.
        return gradio.Slider(
            least,
            max(most, least + 1),
            field.value,
            step=1,
            precision=0,
            label=field.label,
            elem_id=name,
            min_width=220,
        )
    return gradio.Textbox(
        field.value,
        label=field.label,
        lines=field.lines,
        max_lines=12,
        elem_id=name,
        min_width=320,
    )


def mount_page(app: Any, page: Any, host: str, port: int) -> Callable[[], None]:
    """Make the page the root of a web application.

    Args:
        app: `fastapi.FastAPI`.
        page: Of `build_page`.
        host: Where it will be served.
        port: The same.

    Returns:
        What is to be called when the server stops: it ends the connections of pages that are still open.
    """
    gradio = _load_gradio()
    theme = gradio.themes.Base(
        primary_hue="indigo",
        secondary_hue="indigo",
        neutral_hue="slate",
        font=list(_FONTS),
        font_mono=list(_MONOSPACE),
    )
    gradio.mount_gradio_app(
        app,
        page,
        path="/",
        server_name=host,
        server_port=port,
        app_kwargs=dict(_NO_DOCUMENTATION),
        footer_links=[],
        # What people type is theirs: nothing of it is kept, in the browser or here.
        run_history=False,
        enable_monitoring=False,
        max_file_size=1,  # byte: the page takes no files
        show_error=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        # Whatever the environment says: with another root the page would ask that place for its parts.
        root_path="",
        theme=theme,
        css=files("bert_recipes.demo").joinpath("page.css").read_text(encoding="utf-8"),
    )
    mounted = app.routes[-1].app
    return lambda: mounted.stop_event.set()
