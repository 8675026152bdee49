"""Build and serve the page: a tab for each thing that the checkpoint can do."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any

from bert_recipes.demo.model import DemoModel
from bert_recipes.errors import InputError
from bert_recipes.tokenization.others import is_uncased


if TYPE_CHECKING:
    from bert_recipes.demo.tabs import Tab


logger = logging.getLogger(__name__)


def build_page(model: DemoModel) -> Any:
    """Build the page as `gradio.Blocks`.

    The examples are answered now, so that a page that is opened has something to show.
    """
    # Nothing is left to the environment: neither who reaches the page nor what is reported.
    for name in list(os.environ):
        if name.startswith("GRADIO_"):
            del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr

    from bert_recipes.demo.tabs import make_tabs

    title = escape(model.name)
    with gr.Blocks(title=f"{model.name} - bert-recipes", analytics_enabled=False) as page:
        gr.HTML(f"<h1>{title}</h1><p>{escape(describe(model))}</p>")
        for tab in make_tabs(model):
            with gr.Tab(tab.title, id=tab.name):
                _render(model, tab)
    page.queue(max_size=64)
    return page


def describe(model: DemoModel) -> str:
    """Return the sizes of a checkpoint, and which heads it lacks."""
    config = model.network.config
    tokenizer = model.tokenizer
    is_lower = getattr(tokenizer, "do_lower_case", None)
    if is_lower is None:  # stock's tokenizers of bytes do not say it
        is_lower = is_uncased(tokenizer)
    case = "uncased" if is_lower else "cased"
    text = (
        f"{type(model.network).__name__}, {config.num_hidden_layers} layers of "
        f"{config.num_attention_heads} heads, hidden size {config.hidden_size}, "
        f"{model.network.num_parameters():,} parameters, {len(tokenizer):,} tokens, {case}."
    )
    if model.lacks:
        text += f" Not shown: {'; '.join(model.lacks)}."
    return text


def _render(model: DemoModel, tab: Tab) -> None:
    """Put a tab on the page, and the answer to the example in its fields."""
    import gradio as gr

    gr.Markdown(tab.hint)
    with gr.Row():
        for field in tab.fields:
            field.render()
    button = gr.Button(tab.title, variant="primary")
    results = [
        *tab.results,
        gr.Textbox(
            show_label=False,
            max_lines=6,
            render=False,
        ),
    ]
    for result in results:
        result.render()

    listen: dict[str, Any] = {
        "fn": functools.partial(_answer, model, tab),
        "inputs": tab.fields,
        "outputs": results,
        # The checkpoint is asked once at a time: neither tokenizers nor Trainers are made for
        # several threads.
        "concurrency_limit": 1,
        "concurrency_id": "model",
    }
    button.click(api_name=tab.name, **listen)
    for field in tab.fields:
        event = field.release if isinstance(field, gr.Slider) else field.submit
        event(api_visibility="private", **listen)

    if tab.fields[0].value:
        # A run's example can lack a text: then the tab waits for one.
        with suppress(InputError):
            example = [field.value for field in tab.fields]
            values = tab.view(model, *example)
            for result, value in zip(results, values, strict=True):
                result.value = result.postprocess(value)


def _answer(model: DemoModel, tab: Tab, *values: Any) -> tuple[Any, ...]:
    import gradio as gr

    try:
        return tab.view(model, *values)
    except InputError as mistake:
        raise gr.Error(escape(str(mistake)), print_exception=False) from None


def launch_page(
    model: DemoModel,
    host: str,
    port: int,
    *,
    is_local: bool = True,
) -> tuple[Any, str]:
    """Serve the page in a thread; return the page, whose `close` ends it, and its address.

    Args:
        model: The checkpoint.
        host: Name or IPv4 address to listen on.
        port: 0 for any free one.
        is_local: Only this machine reaches the address. Then no other name than its own is
            answered, or a site whose name is made to point here (DNS rebinding) could read the
            page.
    """
    page = build_page(model)
    import gradio as gr
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    names = ["*"]
    if is_local:
        # The last: the other end of a tunnel may have it.
        names = [host, "localhost", "127.0.0.1", "[::1]"]
    # Gradio's own themes fetch fonts, and pages of FastAPI load their scripts from elsewhere.
    theme = gr.themes.Base(
        font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        footer_links=[],
        max_file_size=1,
        enable_monitoring=False,
        app_kwargs={
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
            "middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=names)],
        },
        theme=theme,
    )
    return page, address.rstrip("/")


def serve(
    model: DemoModel,
    host: str,
    port: int,
    *,
    is_local: bool,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM; `is_local` as for `launch_page`."""
    page, address = launch_page(model, host, port, is_local=is_local)
    # SIGINT too: a shell starts what it puts in the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    logger.info("the page is at %s (Ctrl-C ends it)", address)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    page.close(verbose=False)
    logger.info("the page is closed")
