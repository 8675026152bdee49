"""A page in the browser to try a checkpoint: masks, next sentences, its task, attention, pieces.

    python recipes/demo.py --model_name_or_path runs/quickstart

For this machine alone unless --host says otherwise; nothing is sent or loaded from anywhere else
(docs/demo.md).
"""

import ipaddress
import logging
import socket
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.settings import option, required
from bert_recipes.shipped import command_hint


logger = logging.getLogger("demo")


@dataclass
class DemoArguments:
    """Choose the checkpoint, and where the page is served."""

    model_name_or_path: str = required(
        "run folder, any BERT checkpoint with its tokenizer, or Hub name"
    )
    host: str = option(
        "127.0.0.1", "address to listen on; 0.0.0.0 lets everybody in the network in"
    )
    port: int = option(7860, "port to listen on; 0: any free one", least=0, most=65535)
    use_cpu: bool = option(False, "use the CPU even where there is a GPU")

    def __post_init__(self) -> None:
        if find_spec("gradio") is None:
            install = command_hint(
                checkout='python -m pip install --constraint constraints.txt -e ".[demo]"',
                wheel="pip install 'bert-recipes[demo]'",
            )
            raise InputError(f"the page needs gradio, which is not installed: {install}")


def find_address(args: DemoArguments) -> tuple[int, bool]:
    """The port, and whether only this machine reaches it; asked before anything heavy is done."""
    try:
        # Of IPv6, Gradio makes an address that it cannot open itself.
        _, _, _, _, address = socket.getaddrinfo(
            args.host, args.port, family=socket.AF_INET, type=socket.SOCK_STREAM
        )[0]
        with socket.create_server(address) as listener:
            return listener.getsockname()[1], ipaddress.ip_address(address[0]).is_loopback
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"host {args.host}, port {args.port}: {error}; give an IPv4 address or a name of this "
            "machine (--host) and a free port of 1024 or more (--port; make: PORT=), 0 for any"
        ) from None


def main() -> None:
    """Parse, look for the port, open, serve."""
    (args,) = parse_arguments(DemoArguments)
    port, is_loopback = find_address(args)
    # Imported only now, for it takes seconds.
    from bert_recipes.demo.model import open_demo_model
    from bert_recipes.demo.page import serve

    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    for library in ("accelerate", "httpx", "matplotlib", "transformers"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if not is_loopback:
        logger.warning(
            "host %s: whoever reaches this machine can use the page; there is no password and no "
            "encryption",
            args.host,
        )
    with tempfile.TemporaryDirectory() as work_dir:
        model = open_demo_model(args.model_name_or_path, Path(work_dir), use_cpu=args.use_cpu)
        logger.info("%s: %s", model.name, ", ".join((*model.abilities, "attention", "pieces")))
        serve(model, args.host, port, is_local=is_loopback)


if __name__ == "__main__":
    run_cli(main)
