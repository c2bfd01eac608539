"""Oracle: counting. Kernels for the CPU are compiled once per content, whoever asks."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import cuda_on_cpu

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler")


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes a line to this file, takes its time and copies its source."""
    calls, compiler = tmp_path / "calls", tmp_path / "compiler"
    compiler.write_text(
        f"""#!/bin/sh
echo "$*" >>{calls}
[ "$1" = --version ] && echo "compiler 1" && exit
while [ "$1" != -o ]; do shift; done
sleep 0.2
[ -e {tmp_path}/broken ] && echo half >"$2" && exit 1
cp "$3" "$2"
"""
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(cuda_on_cpu, "COMPILER", str(compiler))
    return calls


def count(calls: Path) -> int:
    return len(calls.read_text().splitlines())


def test_many_that_ask_at_once_compile_once(compilations, tmp_path):
    def ask(_: int) -> str:
        return cuda_on_cpu.compiled("source", [], tmp_path / "cache" / "a.so").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["source"] * 4
    assert count(compilations) == 1


def test_a_failed_compilation_leaves_nothing(compilations, tmp_path):
    file = tmp_path / "cache" / "a.so"
    (tmp_path / "broken").touch()
    with pytest.raises(cuda_on_cpu.subprocess.CalledProcessError):
        cuda_on_cpu.compiled("source", [], file)
    assert not file.exists()
    (tmp_path / "broken").unlink()
    assert cuda_on_cpu.compiled("source", [], file).read_text() == "source"


def test_files_that_nobody_compiled_for_a_month_are_forgotten(compilations, tmp_path):
    old, young = tmp_path / "cache" / "old.so", tmp_path / "cache" / "young.so"
    for file in (old, young):
        cuda_on_cpu.compiled("source", [], file)
    month_ago = time.time() - 31 * 24 * 3600
    os.utime(old, (month_ago, month_ago))
    cuda_on_cpu.compiled("source", [], tmp_path / "cache" / "new.so")
    assert not old.exists()
    assert young.exists()


def test_the_key_covers_sources_flags_and_compiler(compilations, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_on_cpu.ctypes, "CDLL", Path)
    monkeypatch.setattr(cuda_on_cpu, "FOLDER", tmp_path)
    source = tmp_path / "one.cu"
    library = cuda_on_cpu._library.__wrapped__

    def key(text: str, constant: int, version: str) -> str:
        source.write_text(text)
        monkeypatch.setattr(cuda_on_cpu, "_compiler_version", lambda: version)
        return library(("one.cu",), (("N", constant),)).name

    asked = [("a", 1, "1"), ("b", 1, "1"), ("a", 2, "1"), ("a", 1, "2"), ("a", 1, "1")]
    keys = [key(*one) for one in asked]
    assert len(set(keys)) == 4
    assert keys[0] == keys[-1]
    assert count(compilations) == 4
