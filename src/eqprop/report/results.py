"""The stored results of a paper, and how complete they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from eqprop.runs.files import write_whole
from eqprop.runs.folder import RunFolder
from eqprop.runs.machine import describe
from eqprop.runs.recipe import UserError

Completeness = Literal["missing", "quick", "full"]


def weakest(parts: Iterable[Completeness]) -> Completeness:
    """Return the completeness of the weakest part."""
    return min(parts, key=("missing", "quick", "full").index)


@dataclass(frozen=True)
class Results:
    """The folders of results: full ones in `root`/paper, quick ones in `root`/paper/quick.

    runs/NAME/      a training run, as `eqprop train` writes it
    NAME.json       the result of an item without training
    """

    root: Path

    def folder(self, quick: bool) -> Path:
        return self.root / "paper" / "quick" if quick else self.root / "paper"

    def run_folder(self, name: str, quick: bool) -> RunFolder:
        return RunFolder(self.folder(quick) / "runs" / name)

    def read(self, name: str, quick: bool) -> dict[str, Any] | None:
        """Return the result of an item, or None. Its "machine" has machine, time and commit."""
        file = self.folder(quick) / f"{name}.json"
        if not file.is_file():
            return None
        try:
            found = json.loads(file.read_bytes())
        except ValueError:
            found = None
        if not isinstance(found, dict) or "machine" not in found:
            raise UserError(f"{file}: damaged: restore it, or delete it and compute it again")
        return found

    def best(self, name: str) -> tuple[Completeness, dict[str, Any]]:
        """Return the full result if it exists, else the quick one."""
        if (full := self.read(name, quick=False)) is not None:
            return "full", full
        quick = self.read(name, quick=True)
        return ("missing", {}) if quick is None else ("quick", quick)

    def store(self, name: str, quick: bool, content: Mapping[str, Any]) -> None:
        """Store the result of an item, with machine, time and commit."""
        where = {**describe("cpu"), "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        found = {"machine": where, "quick": quick, **content}
        folder = self.folder(quick)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        write_whole(folder / f"{name}.json", f"{text}\n".encode())
