"""What lies in a repository of the Hub, and whether it is the model that is to be pushed there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_recipes.hub.client import ASKING
from bert_recipes.hub.identity import IDENTITY_FILE, parse_run_id
from bert_recipes.own_card import CARD_FILE, TRACE_FILE, is_own_card


if TYPE_CHECKING:
    from huggingface_hub import HfApi

_WEIGHTS = (
    *(".safetensors", ".bin", ".h5", ".msgpack", ".ckpt", ".pt", ".pth", ".onnx", ".gguf", ".keras", ".tflite", ".pb"),
    *(".npz", ".pkl", ".joblib", ".mlmodel", ".nemo", ".data-00000-of-00001"),
)


@dataclass(frozen=True)
class RemoteModel:
    """What a revision of a repository holds.

    Attributes:
        commit: The newest commit.
        files: Name -> SHA-256, or None where the Hub does not say it (small files).
        run_id: The run that it was pushed from, if it was pushed from here.
        description: Of the model, for messages.
    """

    commit: str
    files: Mapping[str, str | None]
    run_id: str | None
    description: str

    @property
    def weights(self) -> dict[str, str | None]:
        """Those of the files that may hold weights."""
        return {name: digest for name, digest in self.files.items() if name.endswith(_WEIGHTS)}

    @property
    def is_empty(self) -> bool:
        """Whether there is no model in it."""
        return not self.weights and "config.json" not in self.files

    def is_of(self, run_ids: Collection[str], hash_weights: Callable[[], Mapping[str, str]] | None = None) -> bool:
        """Whether it is an earlier push of the same run, or of the same weights.

        Args:
            run_ids: Any of these runs.
            hash_weights: Name -> SHA-256 of the weights that are to be pushed; called only where nothing else decides.
        """
        if self.run_id is not None and self.run_id in run_ids:
            return True
        known = {name: digest for name, digest in self.weights.items() if "/" not in name}
        return bool(known) and hash_weights is not None and known == dict(hash_weights())


def read_remote(api: HfApi, repo_id: str, revision: str | None) -> RemoteModel:
    """Ask what a repository holds.

    Args:
        api: Of `make_client`.
        repo_id: owner/name.
        revision: Branch; None: main.

    Raises:
        Exception: Those of `hub_errors`.
    """
    info = api.model_info(repo_id, revision=revision, files_metadata=True, timeout=ASKING)
    siblings = info.siblings or []
    files = {item.rfilename: None if item.lfs is None else item.lfs.sha256 for item in siblings}
    run_id = parse_run_id(read_text(api, repo_id, IDENTITY_FILE, info.sha)) if IDENTITY_FILE in files else None
    architectures = (info.config or {}).get("architectures") or ()
    size = sum(item.size or 0 for item in siblings if item.rfilename.endswith(_WEIGHTS))
    described = [architectures[0] if architectures else "a model", f"{size / 1e6:,.1f} MB"]
    if info.last_modified is not None:
        described.append(f"of {info.last_modified:%Y-%m-%d}")
    return RemoteModel(info.sha or "", files, run_id, ", ".join(described))


def read_text(api: HfApi, repo_id: str, name: str, revision: str | None) -> str:
    """The text of a small file in a repository; what is not UTF-8 in it is replaced.

    Raises:
        Exception: Those of `hub_errors`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(repo_id, name, revision=revision, local_dir=folder)
        return Path(path).read_text(encoding="utf-8", errors="replace")


def has_own_card(api: HfApi, repo_id: str, remote: RemoteModel) -> bool:
    """Whether a card may be deleted in a repository: there is none, or one as this project wrote it (`is_own_card`).

    Raises:
        Exception: Those of `hub_errors`.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in {CARD_FILE, TRACE_FILE} & remote.files.keys():
            api.hf_hub_download(repo_id, name, revision=remote.commit, local_dir=folder)
        return is_own_card(Path(folder))
