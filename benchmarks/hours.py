"""Print hours and price of the paper's run of BERT base on rented GPUs.

    python benchmarks/hours.py

Arithmetic from measured steps of 256 inputs on one H200: 900,000 of 128 tokens and 100,000 of 512.
Other cards are estimates: as many sequences a second as their peak rate has of the H200's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.settings import option


# Devlin et al. 2019, appendix A.2
BATCH = 256


STEPS = {"base-128": 900_000, "base-512": 100_000}
RESULTS_DIR = Path("docs/results/gpu")


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

    base_128: Path = option(
        RESULTS_DIR / "step2_base.json",
        "file of benchmarks/gpu.py --step 2 --part base --tokens_per_step 32768",
    )
    base_512: Path = option(
        RESULTS_DIR / "step3_base.json", "file of benchmarks/gpu.py --step 3 --part base"
    )


def measured_hours(files: Mapping[str, Path]) -> float:
    """Return the hours of the paper's run on the card that was measured, by the file of a case."""
    seconds = 0.0
    for case, steps in STEPS.items():
        result = json.loads(files[case].read_text(encoding="utf-8"))["result"]
        ours = result[case]["sides"]["ours"]
        batch = ours["step_sequences"][0]
        if batch != BATCH:
            raise InputError(f"{files[case]}: steps of {batch} inputs; the paper's have {BATCH}")
        seconds += steps * BATCH / ours["examples_per_second"]
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
    files = {"base-128": args.base_128, "base-512": args.base_512}
    for line in make_table(measured_hours(files)):
        print(line)


if __name__ == "__main__":
    run_cli(main)
