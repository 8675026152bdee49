"""Measure what recipes/convert_checkpoint.py takes for a model of real size: seconds and memory, there and back, beside a tiny one.

    python benchmarks/measure_conversion.py --size base --results_file docs/results/conversion.json

Both models have random weights. The tiny one's figures are what starting Python and the libraries alone take.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speed.large_corpus import peak_mb

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS
from bert_recipes.training.speed import describe_machine


SCRIPT = Path(__file__).resolve().parents[1] / "recipes" / "convert_checkpoint.py"


@dataclass
class MeasureArguments:
    """Which model, and how often.

    Attributes:
        size: tiny, mini, small, medium, base or large.
        vocab_size: Rows of the embeddings.
        rounds: Conversions of each kind; the median counts.
        results_file: Where the figures go.
    """

    size: str = field(default="base", metadata={"help": "tiny, mini, small, medium, base or large"})
    vocab_size: int = field(default=30522, metadata={"help": "30522 is the published uncased vocabulary"})
    rounds: int = field(default=3, metadata={"help": "conversions of each kind; the median counts"})
    results_file: str | None = field(default=None, metadata={"help": "also write the figures to this JSON file"})

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.rounds < 1 or self.vocab_size < 100:
            raise InputError("rounds must be 1 or more, vocab_size 100 or more")


def convert(*flags: str | Path) -> dict[str, float]:
    """Run the recipe; seconds by the clock and of the processor, and the largest resident memory in MB.

    Raises:
        InputError: It failed.
    """
    begin, used, peak = time.perf_counter(), processor_seconds(), 0.0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, str(SCRIPT), *map(str, flags)], stdout=said, stderr=said)
        while process.poll() is None:
            peak = max(peak, peak_mb(process.pid))
            time.sleep(0.02)
        seconds = time.perf_counter() - begin
        said.seek(0)
        if process.returncode:
            raise InputError(f"convert_checkpoint.py failed: {said.read().decode()[-300:]}")
    return {"seconds": seconds, "processor_seconds": processor_seconds() - used, "peak_memory_mb": peak}


def processor_seconds() -> float:
    """What the processes that have been started and have ended used up to now."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(size: str, args: MeasureArguments, folder: Path) -> dict[str, Any]:
    """Make a model, convert it there and back, look whether it is the same."""
    from bert_recipes import BertForPreTraining, load_tokenizer
    from bert_recipes.files import write_model_folder
    from bert_recipes.models.sizes import pretraining_config

    pieces = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(args.vocab_size - len(SPECIAL_TOKENS)))]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    model = BertForPreTraining(pretraining_config(size, vocab_size=args.vocab_size))
    write_model_folder(folder / "hub", model, load_tokenizer(folder / "vocab.txt", do_lower_case=True))
    found: dict[str, Any] = {"parameters": model.num_parameters()}
    sides: dict[str, list[dict[str, float]]] = {"to_tensorflow": [], "from_tensorflow": []}
    for number in range(args.rounds):
        source, original, back = folder / "hub", folder / f"tf-{number}", folder / f"back-{number}"
        way_back = ("--model_name_or_path", source, "--to_tensorflow", "--output_dir", original)
        sides["to_tensorflow"].append(convert(*way_back))
        sides["from_tensorflow"].append(convert("--tf_checkpoint", original, "--output_dir", back))
        files = [path / "model.safetensors" for path in (source, back)]
        found["same_weights_file"] = files[0].read_bytes() == files[1].read_bytes()
    for name, rounds in sides.items():
        found[name] = {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]}
    return found


def main() -> None:
    """Measure the tiny and the wanted size, print."""
    (args,) = parse_arguments(MeasureArguments)
    with tempfile.TemporaryDirectory() as folder:
        results = {size: measure(size, args, Path(folder) / size) for size in dict.fromkeys(("tiny", args.size))}
    text = {**results, "rounds": args.rounds, "machine": describe_machine(), "date": time.strftime("%Y-%m-%d")}
    print(json.dumps(text, indent=2))
    if args.results_file:
        write_json(Path(args.results_file), text)


if __name__ == "__main__":
    run_cli(main)
