"""Memory of a training process on a CPU."""

from __future__ import annotations

import ctypes
import logging
import platform
import resource
import sys

import torch


logger = logging.getLogger(__name__)

# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Let glibc keep the blocks that a training step frees, for the next step; the process never gives memory back.

    By default every block above 32 MB goes back to the kernel when it is freed and comes back as empty pages, one page
    fault each. The logits of one batch of 32 x 128 alone are 75 MB.

    Returns:
        Whether it was done; elsewhere than on Linux with glibc nothing is changed.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # An older glibc takes no more than 32 MB. If it takes neither, nothing is changed: setting the others alone would
    # freeze the threshold at its low start.
    if not any(mallopt(_M_MMAP_THRESHOLD, size) == 1 for size in (1 << 30, 1 << 25)):
        logger.info("glibc does not keep freed memory; steps will be slower")
        return False
    # -1: the heap is never trimmed. Any number of bytes would be too small for somebody's step.
    is_done = all(mallopt(name, value) == 1 for name, value in ((_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 64 << 20)))
    if is_done:
        logger.info("memory: freed blocks are kept for the next step (--keep_freed_memory false gives them back)")
    return is_done


def peak_memory_mb() -> float:
    """Peak memory of this process in MB: resident memory, or allocated GPU memory where there is a GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / 2**20 if sys.platform == "darwin" else usage / 2**10
