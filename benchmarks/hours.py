"""Print hours and price of the paper's run of BERT base on rented GPUs.

    python benchmarks/hours.py

Arithmetic from measured steps of 256 inputs on one H200: 900,000 of 128 tokens and 100,000 of 512.
Other cards are estimates: as many sequences a second as their peak rate has of the H200's.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import option


RESULTS_DIR = Path("docs/results/gpu")
# Devlin et al. 2019, appendix A.2
BATCH = 256


class Phase(NamedTuple):
    """A part of the paper's run, and where steps of its batch were measured."""

    steps: int
    case: str  # of benchmarks/gpu.py
    file: str


PHASES = (
    Phase(900_000, "base-128", "step2_base.json"),
    Phase(100_000, "base-512", "step3_base.json"),
)


class Gpu(NamedTuple):
    """A card, and what an hour of it costs."""

    tflops: float  # NVIDIA's data sheets: dense, bfloat16
    price: float  # dollars an hour, Hugging Face Jobs, looked up on 2026-11-27


GPUS = {
    "L4": Gpu(121, 0.80),
    "A10G": Gpu(70, 1.50),
    "L40S": Gpu(362, 1.80),
    "A100": Gpu(312, 2.50),
    "H200": Gpu(989, 5.00),
}
MEASURED = "H200"


@dataclass
class HoursArguments:
    """Choose the measurements."""

    results_dir: Path = option(RESULTS_DIR, "folder of files of benchmarks/gpu.py")


def measured_hours(results_dir: Path) -> float:
    """Return the hours of the paper's run on the card that was measured."""
    seconds = 0.0
    for phase in PHASES:
        text = (results_dir / phase.file).read_text(encoding="utf-8")
        sides = json.loads(text)["result"][phase.case]["sides"]
        seconds += phase.steps * BATCH / sides["ours"]["examples_per_second"]
    return seconds / 3600


def make_table(hours: float) -> list[str]:
    """Return the lines of the table; `hours` are those of the card that was measured."""
    lines = [
        "| GPU | an hour, Hugging Face Jobs | the paper's base | price | |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name, gpu in GPUS.items():
        hours_here = hours * GPUS[MEASURED].tflops / gpu.tflops
        price = hours_here * gpu.price
        origin = "from measured steps" if name == MEASURED else "estimated by the peak rates"
        lines.append(
            f"| {name} | ${gpu.price:.2f} | {hours_here:,.0f} hours | ${price:,.0f} | {origin} |"
        )
    return lines


def main() -> None:
    """Print the table."""
    (args,) = parse_arguments(HoursArguments)
    for line in make_table(measured_hours(args.results_dir)):
        print(line)


if __name__ == "__main__":
    run_cli(main)
