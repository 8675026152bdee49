"""What a run comes from, for its all_results.json: its data and the checkpoint that it began with, known again by their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_recipes.data.file_fingerprint import fingerprint_files
from bert_recipes.data.instances import InstanceDataset
from bert_recipes.data.store_facts import MAX_NAMED_SOURCES, describe_store
from bert_recipes.file_hash import hash_of
from bert_recipes.tasks.examples import Example


if TYPE_CHECKING:
    from bert_recipes.arguments import DataArguments
    from bert_recipes.pretraining import PreTrainingData

WEIGHTS_FILE = "model.safetensors"


def describe_pretraining_data(settings: DataArguments, data: PreTrainingData) -> dict[str, Any]:
    """What a pre-training run was trained on and measured with.

    Args:
        settings: Name the store or the instance files.
        data: The same, opened.

    Returns:
        `describe_store`, or for instance files by split `files`, `bytes`, `names`, `instances` and a `fingerprint`.

    Raises:
        InputError: The store is gone.
    """
    if settings.store is not None:
        return describe_store(settings.store)
    parts = {"train": data.train, "validation": data.validation}
    files = {split: _instance_files(part) for split, part in parts.items() if isinstance(part, InstanceDataset)}
    return {"tokenizer_fingerprint": data.tokenizer.fingerprint, "instance_files": files}


def _instance_files(dataset: InstanceDataset) -> dict[str, Any]:
    return {
        "files": len(dataset.paths),
        "bytes": sum(path.stat().st_size for path in dataset.paths),
        "names": [path.name for path in dataset.paths[:MAX_NAMED_SOURCES]],
        "instances": len(dataset),
        "fingerprint": fingerprint_files(dataset.paths),
    }


def describe_checkpoint(name: str, config: Any) -> dict[str, Any]:
    """Which checkpoint a run began with.

    Args:
        name: Folder or Hub name.
        config: The opened model's `PretrainedConfig`.

    Returns:
        `name` (of a folder the last part), `is_local`; `sha256` of its weights where they are one local file, `revision` of
        one from the Hub where it is known.
    """
    folder = Path(name)
    if not folder.is_dir():
        revision = getattr(config, "_commit_hash", None)
        return {"name": name, "is_local": False} | ({} if revision is None else {"revision": revision})
    facts: dict[str, Any] = {"name": folder.resolve().name, "is_local": True}
    if (folder / WEIGHTS_FILE).is_file():
        facts["sha256"] = hash_of(folder / WEIGHTS_FILE)
    return facts


def hash_of_examples(examples: Sequence[Example]) -> str:
    """SHA-256 (hex) of examples as they were read: texts, labels and ids in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def name_of_source(source: str) -> str:
    """Where a split was read, without the folders of this machine.

    Args:
        source: `Split.source`: a path, or a Hub data set in words.
    """
    return source if source.startswith("Hub data set ") else Path(source).name
