"""Which checkpoint is shown, and where the page is served."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from importlib.util import find_spec

from bert_recipes.errors import InputError


@dataclass
class DemoArguments:
    """The settings of the page."""

    model_name_or_path: str = field(
        metadata={"help": "run folder, any BERT checkpoint with its tokenizer, or Hub name"}
    )
    host: str = field(
        default="127.0.0.1", metadata={"help": "address to listen on; 0.0.0.0 lets everybody in the network in"}
    )
    port: int = field(default=7860, metadata={"help": "port to listen on; 0: any free one"})
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"port is {self.port}; allowed: 1 to 65535, or 0 for any free one")
        if not self.host.strip():
            raise InputError("host is empty; give an address of this machine, 127.0.0.1 for itself alone")
        if find_spec("gradio") is None:
            raise InputError(
                'the page needs gradio, which is not installed: python -m pip install --constraint constraints.txt -e ".[demo]"'
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the page."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
