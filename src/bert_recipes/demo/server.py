"""The web server of the page: on this machine alone unless told otherwise, and without a way out for the page."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from bert_recipes.demo.arguments import DemoArguments
from bert_recipes.demo.model import DemoModel
from bert_recipes.demo.page import build_page, mount_page
from bert_recipes.errors import InputError


if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

# Seconds that answers under way get when the server stops.
_PATIENCE = 3
# The browser itself refuses whatever would load something from elsewhere, or show the page inside another one. Scripts of the
# framework stand inside the page and make functions of text.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def claim_port(args: DemoArguments) -> socket.socket:
    """Listen, before anything heavy is done.

    Args:
        args: Host and port.

    Returns:
        A listening socket.

    Raises:
        InputError: The port is taken or not allowed, or the host is no address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(args.host, args.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (socket.gaierror, UnicodeError) as mistake:
        raise InputError(
            f"host {args.host}: no such address ({mistake}); give 127.0.0.1 or an address of this machine"
        ) from None
    except OSError as mistake:
        if mistake.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {args.port} of {args.host} is taken by another program; give another one with --port (make: PORT=), "
                "0 for any free one"
            ) from None
        raise InputError(
            f"host {args.host}, port {args.port}: {mistake.strerror}; give an address of this machine and a port of 1024 or "
            "more"
        ) from None


def make_app(args: DemoArguments, model: DemoModel, port: int) -> tuple[FastAPI, Any]:
    """The web application.

    Args:
        args: Who may reach it.
        model: The checkpoint.
        port: Where it will be served.

    Returns:
        The application, and what is to be called when the server stops.
    """
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    stop = mount_page(app, build_page(model), args.host, port)
    if args.is_loopback and ":" not in args.host:
        # A site elsewhere whose name is made to point here cannot read the page.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[args.host, "localhost", "127.0.0.1"])
    app.add_middleware(_PolicyMiddleware)
    return app, stop


class _PolicyMiddleware:
    """Adds the headers to every response, streams among them."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


def serve(args: DemoArguments, model: DemoModel, listener: socket.socket) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        args: Who may reach it.
        model: The checkpoint.
        listener: Of `claim_port`.
    """
    server = make_server(args, model, listener)
    if not args.is_loopback:
        logger.warning(
            "host %s: whoever reaches this machine can use the page; there is no password and no encryption. Without --host it "
            "is for this machine alone.",
            args.host,
        )
    # Ctrl-C is how the page is ended, and SIGTERM does the same.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    logger.info("the page is closed")


@contextmanager
def serving(args: DemoArguments, model: DemoModel, listener: socket.socket) -> Iterator[str]:
    """Serve the page in a thread as long as the context lasts; its address is the context's value.

    Args:
        args: Who may reach it.
        model: The checkpoint.
        listener: Of `claim_port`.
    """
    server = make_server(args, model, listener)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield address_of(args, listener)
    finally:
        server.should_exit = True
        thread.join()


def address_of(args: DemoArguments, listener: socket.socket) -> str:
    """What is typed into a browser."""
    host = f"[{args.host}]" if ":" in args.host else args.host
    return f"http://{host}:{listener.getsockname()[1]}"


def make_server(args: DemoArguments, model: DemoModel, listener: socket.socket) -> uvicorn.Server:
    """A server that is ready to run, and lets go of open pages when it ends.

    Args:
        args: Who may reach it.
        model: The checkpoint.
        listener: Of `claim_port`; passed to its `run`, too.
    """
    import uvicorn

    app, stop = make_app(args, model, listener.getsockname()[1])

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            logger.info("the page is at %s (Ctrl-C ends it)", address_of(args, listener))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # The connections of open pages would be waited for.
            stop()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=_PATIENCE, ws="none"
    )
    return Server(config)
