"""What tells files from each other without reading all of them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


_PART_BYTES = 1 << 20


def fingerprint_files(paths: Iterable[Path]) -> str:
    """SHA-256 (hex) of the sizes of files, of their first and of their last megabyte, in their order.

    Args:
        paths: Files; where they lie does not matter.

    Raises:
        OSError: One cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{size}\n".encode())
        with open(path, "rb") as file:
            digest.update(file.read(_PART_BYTES))
            file.seek(max(0, size - _PART_BYTES))
            digest.update(file.read(_PART_BYTES))
    return digest.hexdigest()
