"""Wheels that contain their metadata only, and package indexes made of them.

This module is also the build backend of the project in `test_setup.py`, so it imports the standard
library only.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_wheel(
    folder: str | Path, name: str, version: str, requires: Sequence[str] = (), extra: str = ""
) -> str:
    """Write an installable wheel into a folder and return its file name."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *([f"Provides-Extra: {extra}"] if extra else []),
        *(f"Requires-Dist: {requirement}" for requirement in requires),
    ]
    kind = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    file = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / file, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return file


def add_to_index(index: Path, name: str, version: str) -> None:
    """Add a wheel to a folder in the layout of a package index (its address starts with file:)."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    write_wheel(folder, name, version)
    links = (f'<a href="{wheel.name}">{wheel.name}</a>' for wheel in folder.glob("*.whl"))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


def build_editable(folder: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """The hook of a build backend behind `pip install -e`."""
    requires = ("torch>=2.11,<3", 'fake-linter; extra == "dev"')
    return write_wheel(folder, "eqprop", "0.1.0", requires, extra="dev")
