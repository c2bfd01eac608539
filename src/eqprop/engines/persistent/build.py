"""Compile a kernel on first use with NVRTC, which comes with a CUDA build of PyTorch; launch it.

Sizes are constants of the source, so each shape of network has its own kernel. The binary stays in
the user's cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from eqprop.engines.compiling import Cache, CannotBuild
from eqprop.engines.persistent.problem import Problem

SHARED_SIZE, NON_PORTABLE_CLUSTER = 8, 14  # CUfunction_attribute


class Kernel:
    """The function `run` of a compiled source."""

    def __init__(self, binary: bytes, cluster: int, threads: int) -> None:
        torch.zeros(1, device="cuda")  # makes PyTorch's context current in this thread
        self._driver, self.cluster, self.threads = _driver(), cluster, threads
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), binary)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, b"run")
        self.shared_bytes = self._constant(module, b"shared_bytes")
        device = torch.cuda.get_device_properties()
        limit: int = getattr(device, "shared_memory_per_block_optin", 0)
        if self.shared_bytes > limit:
            raise CannotBuild(f"it needs {self.shared_bytes} bytes of shared memory, of {limit}")
        self._call("cuFuncSetAttribute", self._function, SHARED_SIZE, self.shared_bytes)
        self._call("cuFuncSetAttribute", self._function, NON_PORTABLE_CLUSTER, 1)

    def launch(self, clusters: int, problem: Problem) -> None:
        struct = problem.struct()
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(struct))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = (clusters * self.cluster, 1, 1), (self.threads, 1, 1)
        self._call(
            "cuLaunchKernel",
            self._function,
            *grid,
            *block,
            self.shared_bytes,
            stream,
            pointer,
            None,
        )

    def resident(self) -> int:
        """Return the number of clusters that the device runs at once."""
        config = _LaunchConfig(self.cluster, 1, 1, self.threads, 1, 1, self.shared_bytes)
        count = ctypes.c_int()
        self._call(
            "cuOccupancyMaxActiveClusters",
            ctypes.byref(count),
            self._function,
            ctypes.byref(config),
        )
        return count.value

    def _constant(self, module: ctypes.c_void_p, name: bytes) -> int:
        place, size, value = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int()
        self._call("cuModuleGetGlobal_v2", ctypes.byref(place), ctypes.byref(size), module, name)
        self._call("cuMemcpyDtoH_v2", ctypes.byref(value), place, ctypes.c_size_t(4))
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise CannotBuild(f"{name}: {(text.value or b'unknown error').decode()}")


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of the driver."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number", ctypes.c_uint),
    )


def compiled(sources: Sequence[Path], constants: Mapping[str, int]) -> Kernel:
    """Return the kernel of these sources with these constants, from the cache if possible."""
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    options = [f"-arch=sm_{capability}a", "-std=c++17", "-lineinfo"]
    options += [f"-D{name}={value}" for name, value in constants.items()]
    source = "\n".join(file.read_text("utf-8") for file in sources)
    return Kernel(_binary(source, tuple(options)), constants["CLUSTER"], constants["THREADS"])


@functools.cache
def _binary(source: str, options: tuple[str, ...]) -> bytes:
    described = "\0".join([source, *options, str(torch.version.cuda)])
    cache, key = Cache("persistent"), hashlib.sha256(described.encode()).hexdigest()[:16]
    if (file := cache.find(key, ".cubin")) is not None:
        return file.read_bytes()
    binary = compile_source(source, options)
    with contextlib.suppress(OSError):  # without a cache, compile again next time
        cache.store(key, ".cubin", binary)
    return binary


def compile_source(source: str, options: tuple[str, ...]) -> bytes:
    """Compile CUDA C++ to a binary. This needs no GPU."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), listed):
            raise CannotBuild(f"NVRTC: {_text(nvrtc, program, 'ProgramLog')}")
        return _bytes(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    return _bytes(nvrtc, program, what).rstrip(b"\0").decode()


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CannotBuild(str(error)) from None


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """Return NVRTC of PyTorch's CUDA version, or that of the system."""
    major = (torch.version.cuda or "13").split(".")[0]
    name = f"libnvrtc.so.{major}"
    packages = [Path(folder) for folder in {*site.getsitepackages(), *sys.path} if folder]
    found = [str(file) for folder in packages for file in folder.glob(f"nvidia/*/lib/{name}")]
    for candidate in (*found, name, f"/usr/local/cuda/lib64/{name}"):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise CannotBuild(f"{name} is missing: it comes with a CUDA build of PyTorch")
