"""The kernels of engines/persistent compiled for a CPU: see cuda_on_cpu.hpp.

A compiled kernel is kept in the user's cache under the hash of all that it is made from.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eqprop.engines.compiling import Cache
from eqprop.engines.persistent import FOLDER, PersistentEngine, naive
from eqprop.engines.persistent.problem import Problem

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
REPLACED = ("common.cuh", "chip.cuh")  # included, or spoken for, in cuda_on_cpu.hpp
DRIVER = """
#include "cuda_on_cpu.hpp"
{includes}
static const Problem *problem;
extern "C" int go(const Problem *p, int clusters, int backwards) {{
    problem = p;
    for (int k = 0; k < clusters; k++)
        if (!run_cluster(k * CLUSTER, THREADS, sizeof(Shared), [] {{ run(*problem); }}, backwards))
            return 0;
    return 1;
}}
"""


FLAGS = ("-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", "-shared", "-fPIC")
MACOS_FLAGS = ("-D_XOPEN_SOURCE=700", "-D_DARWIN_C_SOURCE")  # <ucontext.h> asks for them
KEPT_DAYS = 30


@functools.cache
def _library(sources: tuple[str, ...], constants: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    includes = [f'#include "{name}"' for name in sources if name not in REPLACED]
    driver = DRIVER.format(includes="\n".join(includes))
    platform_flags = MACOS_FLAGS if sys.platform == "darwin" else ()
    flags = [*FLAGS, *platform_flags, *(f"-D{name}={value}" for name, value in constants)]
    key = hashlib.sha256("\0".join([driver, *flags, *_texts()]).encode()).hexdigest()[:16]
    return ctypes.CDLL(str(compiled(driver, flags, Cache("emulated").folder / f"{key}.so")))


def _texts() -> list[str]:
    """What a library is compiled from and with, but for the driver and the flags."""
    files = sorted([HERE / "cuda_on_cpu.hpp", *FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")])
    return [
        _compiler_version(),
        *(text for file in files for text in (file.name, file.read_text())),
    ]


@functools.cache
def _compiler_version() -> str:
    return subprocess.run([COMPILER, "--version"], capture_output=True, text=True).stdout


def compiled(driver: str, flags: list[str], file: Path) -> Path:
    """Compile a driver into a file, unless it is there; one process compiles, others wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.is_file():
            _forget_old_files(file.parent)
            with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                source, unfinished = Path(folder) / "driver.cpp", Path(folder) / file.name
                source.write_text(driver)
                command = [COMPILER, *flags, f"-I{HERE}", f"-I{FOLDER}", "-o", unfinished, source]
                subprocess.run(command, check=True)
                os.replace(unfinished, file)
    return file


def _forget_old_files(folder: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for file in (*folder.glob("*.so"), *folder.glob("*.lock")):
        if file.stat().st_mtime < oldest:
            file.unlink(missing_ok=True)


class Emulated:
    """In the place of a compiled kernel."""

    def __init__(
        self, sources: tuple[str, ...], constants: dict[str, int], backwards: bool
    ) -> None:
        self._library = _library(sources, tuple(constants.items()))
        self._backwards = backwards

    def resident(self) -> int:
        return 1000

    def launch(self, clusters: int, problem: Problem) -> None:
        struct = problem.struct()
        if not self._library.go(ctypes.byref(struct), clusters, int(self._backwards)):
            raise RuntimeError("the threads of the kernel wait for each other for ever")


class EmulatedEngine(PersistentEngine):
    """The persistent engine without a GPU."""

    backwards = False

    def kernel(self, batch: int, relaxes: bool = False) -> Emulated:  # type: ignore[override]
        constants = self._constants(batch, self._clusters[0], relaxes)
        return Emulated(self._sources, constants, self.backwards)


class Naive:
    """In the place of a compiled kernel: what it is to compute."""

    def resident(self) -> int:
        return 1000

    def launch(self, clusters: int, problem: Problem) -> None:
        naive.run(problem)


class NaiveEngine(PersistentEngine):
    """The persistent engine with the readable kernel."""

    def kernel(self, batch: int, relaxes: bool = False) -> Naive:  # type: ignore[override]
        return Naive()
