"""Available memory, checked before large allocations."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


class NotEnoughMemory(ValueError):
    """A request does not fit into memory. The message says what it needs and what there is."""


def require(size: int, purpose: str, device: torch.device | str = "cpu") -> None:
    """Raise `NotEnoughMemory` if the device has fewer than `size` bytes for `purpose`."""
    there = available(device)
    if there is not None and size > there:
        raise NotEnoughMemory(
            f"{purpose} would need {text(size)} of memory, but {torch.device(device).type} has "
            f"{text(there)}: make the network, the ensemble or the batch smaller"
        )


@contextmanager
def enough_for(purpose: str) -> Iterator[None]:
    """Turn a failed allocation in the body into `NotEnoughMemory`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        refused = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not refused and "can't allocate memory" not in str(error):
            raise
        raise NotEnoughMemory(
            f"{purpose} needs more memory than there is: make the network, the ensemble or the "
            "batch smaller"
        ) from None


def available(device: torch.device | str = "cpu") -> int | None:
    """Return the free bytes on a device; None if that is unknown."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if torch.device(device).type != "cpu":
        return None
    limits = [limit for limit in (_system(), _container()) if limit is not None]
    return min(limits, default=None)


def held() -> int:
    """Return the peak memory of this process so far, in bytes."""
    import resource  # not on Windows

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _system() -> int | None:
    try:
        rows = (line.split() for line in MEMINFO.read_text().splitlines())
        sizes = {row[0]: 1024 * int(row[1]) for row in rows}
        return sizes["MemAvailable:"] + sizes["SwapFree:"]
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:  # not on Linux: the total memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _container() -> int | None:
    try:
        return int(CGROUP.read_text())
    except (OSError, ValueError):  # "max"
        return None


def text(size: int) -> str:
    """Format a number of bytes: 1.61 MB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"
