"""What a preparation did, in numbers and as a table."""

import resource
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class PreparationReport:
    """What was done.

    Attributes:
        path: The store.
        splits: Per split: documents, sentences, tokens, documents_of_one_sentence.
        dropped: Per split and reason: how many were left out.
        repaired: Per split and kind: what was changed in the text.
        read_documents: Documents read, whether or not anything is left of them.
        text_bytes: Bytes of text read.
        num_shards, kept_shards: Shards of the store, and those that were done before.
        store_bytes: Size of the store.
        seconds: Wall-clock time.
        new_bytes: Bytes of text read in that time: less than text_bytes where shards were kept.
        main_peak_bytes, worker_peak_bytes: Largest resident memory of this process and of any worker process (0: none).
    """

    path: Path
    splits: dict[str, Counter[str]] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    repaired: dict[str, Counter[str]] = field(default_factory=dict)
    read_documents: int = 0
    text_bytes: int = 0
    num_shards: int = 1
    kept_shards: int = 0
    store_bytes: int = 0
    seconds: float = 0.0
    new_bytes: int = 0
    main_peak_bytes: int = 0
    worker_peak_bytes: int = 0

    def add(self, metadata: Mapping[str, Any]) -> None:
        """Add what the ``store.json`` of a store, or of a shard, says."""
        for split, entry in metadata["splits"].items():
            self.splits.setdefault(split, Counter()).update(
                documents=entry["num_documents"],
                sentences=entry["num_sentences"],
                tokens=entry["num_tokens"],
                documents_of_one_sentence=metadata["documents_of_one_sentence"].get(split, 0),
            )
        for split, counts in metadata["read"].items():
            self.read_documents += counts["documents"]
            self.text_bytes += counts["text_bytes"]
            self.repaired.setdefault(split, Counter()).update(counts["repaired"])
        for split, dropped in metadata["dropped"].items():
            self.dropped.setdefault(split, Counter()).update(dropped)

    def measure(self, seconds: float, *, has_workers: bool) -> None:
        """Note size, time and the largest resident memory up to now."""
        self.store_bytes = sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())
        self.seconds = seconds
        self.main_peak_bytes = _peak_bytes(resource.RUSAGE_SELF)
        self.worker_peak_bytes = _peak_bytes(resource.RUSAGE_CHILDREN) if has_workers else 0


def add_counts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up mappings of numbers, and of such mappings, name by name."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Mapping):
                total[name] = add_counts([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total


def _peak_bytes(who: int) -> int:
    """Return the largest resident memory so far (of the largest child, for children); macOS counts in bytes."""
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def format_report(report: PreparationReport) -> str:
    """Return the report as a short text table."""
    lines = [f"{'':24}" + "".join(f"{split:>16}" for split in report.splits)]
    for name in ("documents", "sentences", "tokens"):
        lines.append(f"{name:24}" + "".join(f"{counts[name]:>16,}" for counts in report.splits.values()))
    for title, groups in (("dropped", report.dropped), ("repaired", report.repaired)):
        for split, counts in groups.items():
            lines += [f"{title} ({split}): {reason.replace('_', ' ')}: {count:,}" for reason, count in counts.items()]
    speed = report.new_bytes / max(report.seconds, 1e-9)
    if report.num_shards > 1:
        lines.append(f"shards: {report.num_shards}, of which {report.kept_shards} were done before")
    lines += [
        f"text {report.new_bytes / 1e6:,.1f} MB in {report.seconds:,.1f} s: {speed / 1e6:,.1f} MB/s",
        f"peak memory: {report.main_peak_bytes / 1e6:,.0f} MB main process"
        + (f", {report.worker_peak_bytes / 1e6:,.0f} MB largest worker" if report.worker_peak_bytes else ""),
        f"store: {report.path} ({report.store_bytes / 1e6:,.1f} MB)",
    ]
    return "\n".join(lines)
