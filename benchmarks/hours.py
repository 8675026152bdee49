"""Print hours and price of the paper's run of BERT base on rented GPUs.

    python benchmarks/hours.py

Arithmetic from the measured steps of one H200 (docs/results/gpu/step3_base.json): 900,000 steps of
256 inputs of 128 tokens, and 100,000 of 512. Other cards are estimates: as many sequences a second
as their peak rate has of the H200's.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import option


RESULTS = Path("docs/results/gpu/step3_base.json")
# Devlin et al. 2019, appendix A.2
BATCH = 256
STEPS = {"base-128": 900_000, "base-512": 100_000}


class Gpu(NamedTuple):
    """A card, and what an hour of it costs."""

    tflops: float  # NVIDIA's data sheets: dense, bfloat16; the T4's in float16
    price: float  # dollars an hour, Hugging Face Jobs, looked up on 2026-11-27


GPUS = {
    "T4": Gpu(65, 0.40),
    "L4": Gpu(121, 0.80),
    "A10G": Gpu(70, 1.50),
    "L40S": Gpu(362, 1.80),
    "A100": Gpu(312, 2.50),
    "H200": Gpu(989, 5.00),
}
MEASURED = "H200"


@dataclass
class HoursArguments:
    """Choose the measurement."""

    results: Path = option(RESULTS, "file of benchmarks/gpu.py --step 3 --part base")


def measured_hours(results: Path) -> float:
    """Return the hours of the paper's run on the card that was measured."""
    measured = json.loads(results.read_text(encoding="utf-8"))["result"]
    seconds = 0.0
    for name, steps in STEPS.items():
        sequences_per_second = measured[name]["sides"]["ours"]["examples_per_second"]
        seconds += steps * BATCH / sequences_per_second
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
    for line in make_table(measured_hours(args.results)):
        print(line)


if __name__ == "__main__":
    run_cli(main)
