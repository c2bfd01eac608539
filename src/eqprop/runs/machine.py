"""Machine, versions and commit of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch


def describe(
    device: str, threads: int | None = None, precision: torch.dtype | None = None
) -> dict[str, object]:
    """Return machine, versions and commit as plain values.

    Args:
        device: "cpu" or "cuda".
        threads: number of threads of the engine. Default None: PyTorch's.
        precision: dtype of what convolutions multiply. Default None: that of the model.
    """
    import eqprop

    machine: dict[str, object] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads or torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
    }
    if device.startswith("cuda"):
        machine["gpu"] = torch.cuda.get_device_name(device)
        machine["tf32"] = torch.get_float32_matmul_precision() != "highest"
        machine["convolutions_tf32"] = torch.backends.cudnn.allow_tf32
    if precision is not None:
        machine["precision"] = precision_name(precision)
    return {
        "machine": machine,
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "eqprop": eqprop.__version__,
        },
        "commit": _commit(),
    }


def precision_name(precision: torch.dtype) -> str:
    """Return the name of a precision, as `--precision` takes it."""
    return str(precision).removeprefix("torch.")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str | None:
    """Return the commit of the sources, with "+changes" if they differ from it; None if unknown.

    The environment variable EQPROP_COMMIT replaces it, for a copy of the sources without git.
    """
    if told := os.environ.get("EQPROP_COMMIT"):
        return told

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", str(Path(__file__)))
        changes = "+changes" if git("status", "--porcelain", "--", "../..") else ""
        return git("rev-parse", "HEAD") + changes if tracked else None
    except (OSError, subprocess.SubprocessError):
        return None
