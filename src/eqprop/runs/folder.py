"""The folder of a run: what lies in it, and that nothing in it is ever lost or half written.

    recipe.toml      the resolved recipe; `eqprop train recipe.toml --out . --resume` goes on
    metrics.jsonl    one line an epoch
    angles.jsonl     on request: the angle to BPTT during training
    summary.json     final and best errors, wall time, machine, versions, commit
    checkpoints/     last.ckpt and previous.ckpt
    curves.png, tensorboard/

A checkpoint is one JSON line with the SHA-256 of what follows, then tensors as `torch.save`
writes them; it is read with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from eqprop.runs import recipe as recipes
from eqprop.runs.locking import lock as take_lock
from eqprop.runs.recipe import Recipe, UserError

CHECKPOINT_FORMAT = 1
TABLES = ("saturated", "weight_norm", "weight_angle")  # of the metrics: a list for each name
ERROR = int | float | None
SUMMARY = {
    "epochs": int,
    "members": [
        {"final_test_error": ERROR, "final_train_error": ERROR, "last_ten_test_error": ERROR}
    ],
    "frozen": [{"member": int, "epoch": int, "place": str}],
    "wall_seconds": int | float,
    "machine": {"processor": str},
}


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        folder = cls(Path(path))
        if not folder.recipe_file.is_file():
            raise UserError(f"{path}: not the folder of a run (it has no recipe.toml)")
        return folder

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.toml"

    def recipe(self) -> Recipe:
        return recipes.load(str(self.recipe_file))

    def metrics(self) -> list[dict[str, Any]]:
        records = self.read_lines("metrics.jsonl")
        members = self._members() if records and self.recipe_file.is_file() else None
        for line, record in enumerate(records, start=1):
            if not _is_epoch(record, members):
                raise UserError(
                    f"{self.path / 'metrics.jsonl'}: damaged: line {line} is incomplete, or of "
                    "another recipe"
                )
        return records

    def summary(self) -> dict[str, Any] | None:
        file = self.path / "summary.json"
        if not file.is_file():
            return None
        try:
            loaded = json.loads(file.read_bytes())
        except ValueError:
            loaded = None
        if not _fits(loaded, SUMMARY) or len(loaded["members"]) != self._members():
            raise UserError(f"{file}: damaged; resume the run to mend it")
        summary: dict[str, Any] = loaded
        return summary

    def _members(self) -> int:
        return len(self.recipe().members())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; another process that wants it is refused, a dead one lets it go."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a+") as lock:
            try:
                take_lock(lock)
            except OSError:
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                raise UserError(
                    f"{self.path}: another process ({holder}) is training in this folder: "
                    "wait for it, or choose another --out"
                ) from None
            lock.truncate(0)
            lock.write(f"pid {os.getpid()}")
            lock.flush()
            yield

    def check(self, recipe: Recipe, resume: bool) -> None:
        """Refuse a folder that this recipe must not be run in. Touches nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file: choose another --out")
        if self.recipe_file.is_file():
            differing = self.recipe().differences(recipe)
            if differing:
                raise UserError(
                    f"{self.path}: holds a run with another recipe (it differs in "
                    f"{', '.join(differing)}): choose another --out"
                )
            if not resume:
                raise UserError(
                    f"{self.path}: holds this run already, at epoch {len(self.metrics())}: "
                    "add --resume to go on, or choose another --out"
                )
        elif self.path.is_dir() and any(p.name != ".lock" for p in self.path.iterdir()):
            raise UserError(
                f"{self.path}: is not empty and not the folder of a run: choose another --out"
            )
        elif resume:
            raise UserError(f"{self.path}: there is no run to resume: leave out --resume")

    def write_text(self, name: str, text: str) -> None:
        _write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def append_line(self, name: str, value: dict[str, Any]) -> None:
        _write(self.path / name, f"{json.dumps(_rounded(value))}\n".encode(), "ab")

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        file = self.path / name
        if not file.is_file():
            return []
        try:
            return [json.loads(line) for line in file.read_bytes().splitlines()]
        except ValueError:
            raise UserError(f"{file}: damaged; resume the run to mend it") from None

    def check_metrics(self, epochs: int) -> None:
        """Refuse to go on from a checkpoint of so many epochs where their lines are not there, and
        to begin anew where a run has gone on without one.
        """
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines() if file.is_file() else []
        numbers = [_number(line, "epoch") for line in lines]
        if epochs == 0 and (len(lines) > 1 or (self.path / "summary.json").is_file()):
            raise UserError(f"{self.path}: has no checkpoint to go on from: choose another --out")
        if numbers[:epochs] != list(range(1, epochs + 1)):
            raise UserError(
                f"{file}: lacks lines of the {epochs} epochs that the checkpoint has: put them "
                "back, or start the run anew in another folder"
            )

    def keep_lines(self, name: str, key: str, limit: int) -> None:
        """Drop what was written after the checkpoint that a run goes on from."""
        file = self.path / name
        if file.is_file():
            lines = file.read_bytes().splitlines()
            kept = [line for line in lines if _number(line, key) <= limit]
            _write_atomically(file, b"".join(line + b"\n" for line in kept))

    def save_checkpoint(self, content: dict[str, Any]) -> None:
        self.checkpoints.mkdir(exist_ok=True)
        buffer = io.BytesIO()
        torch.save(content, buffer)
        body = buffer.getvalue()
        header = {"format": CHECKPOINT_FORMAT, "sha256": hashlib.sha256(body).hexdigest()}
        last, previous = self.checkpoints / "last.ckpt", self.checkpoints / "previous.ckpt"
        new = _write_beside(last, json.dumps(header).encode() + b"\n" + body)
        if last.is_file():
            os.replace(last, previous)
        os.replace(new, last)

    def load_checkpoint(self, recipe: Recipe) -> dict[str, Any] | None:
        """The last checkpoint, which must be one of this recipe; None if the run has none yet."""
        # last.ckpt alone is missing if the machine stopped between two renames.
        for file in (self.checkpoints / "last.ckpt", self.checkpoints / "previous.ckpt"):
            if file.is_file():
                saved = self._read_checkpoint(file)
                differing = recipes.from_toml(saved["recipe"].encode(), str(file)).differences(
                    recipe
                )
                if differing:
                    raise UserError(
                        f"{file}: was saved with another recipe (it differs in "
                        f"{', '.join(differing)}): put back {self.recipe_file} as it was"
                    )
                return saved
        return None

    def _read_checkpoint(self, file: Path) -> dict[str, Any]:
        header, _, body = file.read_bytes().partition(b"\n")
        try:
            known = json.loads(header)
        except ValueError:
            known = {}
        sha256 = known.get("sha256") if isinstance(known, dict) else None
        if sha256 != hashlib.sha256(body).hexdigest():
            previous = file.parent / "previous.ckpt"
            remedy = (
                f"delete it to go on from {previous.name}"
                if file.name == "last.ckpt" and previous.is_file()
                else "start the run anew in another folder"
            )
            raise UserError(f"{file}: truncated or edited (its checksum does not match): {remedy}")
        if known.get("format") != CHECKPOINT_FORMAT:
            raise UserError(f"{file}: written in format {known.get('format')}, not known here")
        content: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
        return content


def _rounded(value: Any) -> Any:
    """Numbers to twelve digits: ends like 10.360000000000001 say nothing, and fill megabytes."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value has the type of a shape; a dict, its keys; a list, items of its one."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            key in value and _fits(value[key], inner) for key, inner in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    return isinstance(value, shape)


def _is_epoch(record: Any, members: int | None) -> bool:
    """Whether a line of the metrics has its epoch and, of each quantity, a value a member."""
    if not _fits(record, {"epoch": int, "train_error": [ERROR]}):
        return False
    width = len(record["train_error"]) if members is None else members
    for key, value in record.items():
        lists = value.values() if key in TABLES and isinstance(value, dict) else [value]
        if key != "epoch" and not all(_fits(v, [ERROR]) and len(v) == width for v in lists):
            return False
    return True


def _number(line: bytes, key: str) -> float:
    """A half-written line counts as later than any other."""
    try:
        return float(json.loads(line)[key])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _write(file: Path, content: bytes, mode: str) -> None:
    """Write to the disk; a failure names the file, which a full disk does not."""
    try:
        with open(file, mode) as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None


def _write_beside(file: Path, content: bytes) -> Path:
    """Write what is to replace a file, or leave nothing."""
    new = file.with_name(f"{file.name}.new")
    try:
        _write(new, content, "wb")
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return new


def _write_atomically(file: Path, content: bytes) -> None:
    os.replace(_write_beside(file, content), file)
