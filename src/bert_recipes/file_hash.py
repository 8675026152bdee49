"""The hash by which a file is known again."""

import hashlib
from pathlib import Path


def hash_of(path: Path) -> str:
    """SHA-256 (hex) of a file, of any size.

    Raises:
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
