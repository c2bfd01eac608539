"""Several processes on one GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"
FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
PROBE = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
SECONDS = 60.0  # to start, or to stop


@contextmanager
def shared_gpu() -> Iterator[Mapping[str, str] | None]:
    """Start NVIDIA's multi-process service, which ends with the context.

    Processes that share a GPU through it fill what the others leave idle. Without it they take
    turns.

    Yields:
        the environment variables of processes that use it; none if the user has already set them.
        None if it is not installed or does not work here.
    """
    if FOLDERS[0] in os.environ:
        yield {}
        return
    control = shutil.which(CONTROL)
    if control is None:
        yield None
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        added = dict.fromkeys(FOLDERS, folder)
        environment = os.environ | added
        started = _succeeds([control, "-d"], environment)
        try:
            yield added if started and _succeeds(PROBE, environment) else None
        finally:
            if started:
                _succeeds([control], environment, b"quit\n")


def _succeeds(command: list[str], environment: Mapping[str, str], said: bytes = b"") -> bool:
    try:
        done = subprocess.run(
            command, env=environment, input=said, timeout=SECONDS, stdout=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
