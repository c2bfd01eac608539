"""Compile the kernel on first use with the system's C compiler, and keep it in the user's cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from eqprop.engines.compiling import Cache, CannotBuild

SOURCE = Path(__file__).with_name("kernel.c")
FLAGS = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
LINK = ("-shared", "-fPIC", "-pthread")


@functools.cache
def library(dtype: torch.dtype) -> ctypes.CDLL:
    """Return the compiled kernel for float32 or float64."""
    if os.environ.get("EQPROP_NATIVE") == "0":
        raise CannotBuild("EQPROP_NATIVE=0 turns it off")
    compiler = _compiler()
    flags = [*FLAGS, *LINK, *_target(), *(["-DDOUBLE"] if dtype == torch.float64 else [])]
    key = hashlib.sha256(
        "\0".join([SOURCE.read_text("utf-8"), *flags, _version(compiler), _processor()]).encode()
    ).hexdigest()[:16]
    cache, name = Cache("native"), f"kernel-{key}"
    try:
        file = cache.find(name, ".so") or cache.store(name, ".so", _compile(compiler, flags))
        return ctypes.CDLL(str(file))
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuild(str(error)) from None


def _compile(compiler: str, flags: list[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernel.so"
        command = [compiler, *flags, "-o", str(made), str(SOURCE)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if process.returncode:
            said = (process.stderr.strip().splitlines() or ["no message"])[0]
            raise CannotBuild(f"{compiler} failed: {said}")
        return made.read_bytes()


def _compiler() -> str:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise CannotBuild("there is no C compiler (cc, gcc or clang)")


def _target() -> list[str]:
    return ["-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"]


def _version(compiler: str) -> str:
    process = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30)
    return process.stdout


def _processor() -> str:
    """Return a description of the processor, on which -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()
