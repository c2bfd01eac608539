"""The kernels of engines/persistent compiled for a CPU: see cuda_on_cpu.hpp."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

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


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@functools.cache
def _library(sources: tuple[str, ...], constants: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    key = hashlib.sha256(repr((sources, constants)).encode()).hexdigest()[:16]
    source, binary = Path(_folder().name) / f"{key}.cpp", Path(_folder().name) / f"{key}.so"
    includes = [f'#include "{name}"' for name in sources if name not in REPLACED]
    source.write_text(DRIVER.format(includes="\n".join(includes)))
    flags = [f"-D{name}={value}" for name, value in constants]
    folders = [f"-I{HERE}", f"-I{FOLDER}"]
    command = ["-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", *folders, *flags]
    subprocess.run([COMPILER, *command, "-o", str(binary), str(source)], check=True)
    return ctypes.CDLL(str(binary))


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
