"""The run folder. Only this module reads and writes its files.

    recipe.toml      the resolved recipe; `eqprop train recipe.toml --out . --resume` continues
    run.json         the data (shapes, SHA-256, folder), and one entry per session: start, engine,
                     machine, versions, commit, seconds of the run up to its end
    metrics.jsonl    one line per epoch
    angles.jsonl     on request: the angle to BPTT during training
    checkpoints/     last.ckpt and previous.ckpt
    summary.json     derived from the files above when the run is complete; never read
    *.png, tensorboard/

Each line of a log ends with a hash of itself and of the hash before it. The first hash depends on
the recipe and the data. A checkpoint holds its epoch and the hash of the metrics up to that epoch.
These hashes show files that were edited or do not belong together, and the first epoch concerned.

A checkpoint is one JSON line with the SHA-256 of the rest, then tensors written by `torch.save` and
read with `weights_only=True`.

A folder without run.json is older than the hashes. It can be read unverified, but not resumed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eqprop.network import Network
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.files import as_json, link_error, parse_json, read_json, write_beside, write_whole
from eqprop.runs.lock import held
from eqprop.runs.log import Log
from eqprop.runs.recipe import Recipe, UserError
from eqprop.runs.summary import summarise
from eqprop.splits import Dataset

FORMAT = 1  # of run.json
CHECKPOINT_FORMATS = (1, 2)  # 1 had no hash of the metrics
TABLES = ("saturated", "weight_norm", "weight_angle")  # metrics with one list per name
NUMBER, ERROR = int | float, int | float | None
NON_FINITE = [{"member": int, "epoch": int, "place": str}]
LEFT = {"frozen": NON_FINITE, "pruned": [int]}  # metrics: members that left
FACTS = {"wall_seconds": NUMBER, "machine": {"processor": str}}
SPLIT = {"images": [int], "sha256": str}
RUN = {
    "format": int,
    "data": {"name": str, "folder": str | None, "train": SPLIT, "test": SPLIT},
    "sessions": [FACTS],
}
CHECKPOINT = {
    "recipe": str,
    "epoch": int,
    "minibatch": int,
    "seconds": NUMBER,
    "living": [int],
    "frozen": NON_FINITE,
    "wrong": Tensor,
    "loss": Tensor,
    "parameters": dict,
}
LOGS = {"log": str, "angles_log": str}  # hashes in a checkpoint of a verified folder


@dataclass(frozen=True)
class Checkpoint:
    """The saved state of a run."""

    file: Path
    epoch: int  # number of complete epochs
    minibatch: int  # number of complete minibatches of the current epoch
    seconds: float
    living: list[int]  # the members that are finite and not pruned
    non_finite: list[dict[str, Any]]
    wrong: Tensor  # misclassified samples of the current epoch, [members]
    loss: Tensor  # sum of the costs of the current epoch, [members]
    net: Network | None  # networks of the living
    update: dict[str, Any]  # state of their update, such as momentum
    log: str | None  # hash of the metrics so far
    angles_log: str | None  # hash of the angles so far


class RunFolder:
    """Reads the folder of a run and verifies what it reads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if not folder.begun:
            raise UserError(f"{path}: not the folder of a run (it has no recipe.toml)")
        return folder

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def begun(self) -> bool:
        return self.recipe_file.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run is complete and everything is saved."""
        return (self.path / "summary.json").is_file()

    @property
    def verified(self) -> bool:
        """Whether the folder has hashes to verify its files with."""
        return (self.path / "run.json").exists()

    def recipe(self) -> Recipe:
        return recipes.load(str(self.recipe_file))

    def origin(self) -> dict[str, Any] | None:
        """Return the content of run.json; None if there is none."""
        file = self.path / "run.json"
        if not self.verified:
            return None
        origin = read_json(file)
        if not _fits(origin, RUN):
            raise UserError(
                f"{file}: damaged: put it back, or delete it to read the run unverified"
            )
        if origin["format"] != FORMAT:
            raise UserError(f"{file}: written in format {origin['format']}, not known here")
        return dict(origin)

    def data_folder(self) -> str | None:
        """Return the data folder that the user gave; None if unknown."""
        origin = self.origin()
        folder: str | None = origin["data"]["folder"] if origin else None
        return folder

    def other_data(self, data: Dataset) -> str | None:
        """Return the first split that differs from the run's; None if none does or unknown."""
        origin = self.origin()
        if origin is None:
            return None
        known = origin["data"]
        return next((name for name, it in data.fingerprint.items() if known.get(name) != it), None)

    def metrics(self) -> list[dict[str, Any]]:
        """Return one record per epoch."""
        log = self._metrics()
        if not log.whole:
            raise UserError(
                f"{log.file}: damaged or edited from epoch {len(log.records) + 1} on: "
                f"{self._remedy(log)}"
            )
        return log.records

    def glimpse(self) -> dict[str, Any] | None:
        """Return the latest epoch of a run in progress, unverified; None before the first."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines() if file.is_file() else []
        record = parse_json(lines[-1]) if lines else None
        return record if _fits(record, {"epoch": int, "train_error": [ERROR]}) else None

    def summary(self) -> dict[str, Any]:
        """Return the errors, from recipe and metrics, and the facts of the latest session."""
        summary = summarise(self.recipe(), self.metrics())
        origin = self.origin()
        if origin is not None:
            sessions = origin["sessions"]
            return {**summary, **(sessions[-1] if sessions else {})}
        return {**summary, **self._earlier_facts()}

    def _earlier_facts(self) -> dict[str, Any]:
        """Return the facts in summary.json, for folders older than run.json."""
        file = self.path / "summary.json"
        if not file.is_file():
            return {}
        found = read_json(file)
        if not _fits(found, FACTS | {"frozen": NON_FINITE}):
            raise UserError(f"{file}: damaged: put it back, or delete it")
        keys = ("frozen", "wall_seconds", "engine", "machine", "versions", "commit")
        return {key: found[key] for key in keys if key in found}

    def checkpoint(self) -> Checkpoint | None:
        """Return the latest checkpoint; None if the run has none yet."""
        # Only last.ckpt is missing if the machine stopped between two renames.
        for name in ("last.ckpt", "previous.ckpt"):
            if (self.checkpoints / name).is_file():
                saved = self._checkpoint(self.checkpoints / name)
                self._check_log(saved)
                return saved
        return None

    def check(self, recipe: Recipe, resume: bool) -> None:
        """Raise if this recipe must not run in the folder. Change nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file: choose another --out")
        if self.begun:
            self._check_begun(recipe, resume)
        elif self.path.is_dir() and not all(map(_is_left_over, self.path.iterdir())):
            raise UserError(
                f"{self.path}: is not empty and not the folder of a run: choose another --out"
            )
        elif resume:
            raise UserError(f"{self.path}: there is no run to resume: leave out --resume")
        for folder in (self.path, self.checkpoints):
            for file in folder.iterdir() if folder.is_dir() else ():
                if file.is_symlink():
                    raise UserError(link_error(file))

    def check_precision(self, precision: torch.dtype | None) -> None:
        """Raise unless the latest session of the run had this precision (see `make_engine`)."""
        sessions = (self.origin() or {}).get("sessions", ())
        before = sessions[-1]["machine"].get("precision") if sessions else None
        now = None if precision is None else machine.precision_name(precision)
        if sessions and before != now:
            own = "that of the network"
            raise UserError(
                f"{self.path}: was trained with precision {before or own}, so it cannot go on with "
                f"{now or own}: " + (f"add --precision {before}" if before else "leave it out")
            )

    def _check_begun(self, recipe: Recipe, resume: bool) -> None:
        differing = self.recipe().differences(recipe)
        if differing:
            why = ", because the schedule depends on them" if differing == ["epochs"] else ""
            raise UserError(
                f"{self.path}: holds a run with another recipe (it differs in "
                f"{', '.join(differing)}{why}): choose another --out"
            )
        if not resume:
            raise UserError(
                f"{self.path}: holds this run already, at epoch {len(self.metrics())}: "
                "add --resume to go on, or choose another --out"
            )
        if not self.verified:
            raise UserError(
                f"{self.path}: has no run.json to verify it with, so it can be read but not "
                "resumed: choose another --out"
            )

    @contextmanager
    def writing(self, recipe: Recipe, data: Dataset, resume: bool) -> Iterator[RunWriter]:
        """Lock the folder and yield its writer; raise if another process holds it."""
        with self._held():
            self.check(recipe, resume)
            yield RunWriter(self, recipe, data, resume)

    def _held(self) -> AbstractContextManager[None]:
        return held(self.path, "training in this folder")

    def write_picture(self, name: str, content: bytes) -> Path:
        write_whole(self.path / name, content)
        return self.path / name

    def _metrics(self) -> Log:
        recipe, origin = self.recipe(), self.origin()
        members = len(recipe.members())
        root = None if origin is None else _root(recipe, origin["data"])

        def fits(record: Any, number: int) -> bool:
            return _is_epoch(record, members) and record["epoch"] == number

        return Log(self.path / "metrics.jsonl", root, fits)

    def _remedy(self, log: Log) -> str:
        """Return the remedy for metrics that are intact only up to some epoch."""
        intact, resume = len(log.records), "resume the run to train them again"
        if self.verified:
            last, previous = map(self._saved_epoch, ("last.ckpt", "previous.ckpt"))
            if last is None and previous is None and log.lines == 1:
                return resume
            if last is not None and last <= intact:
                return resume
            if previous is not None and previous <= intact:
                return resume if last is None else f"delete checkpoints/last.ckpt and {resume}"
        return "put the file back, or start the run anew in another folder"

    def _saved_epoch(self, name: str) -> int | None:
        try:
            return self._checkpoint(self.checkpoints / name).epoch
        except (UserError, OSError):
            return None

    def _check_log(self, saved: Checkpoint) -> None:
        """Raise if a checkpoint does not match the metrics."""
        log = self._metrics()
        if saved.epoch > len(log.records):
            raise UserError(
                f"{log.file}: lacks lines of the {saved.epoch} epochs that {saved.file.name} has, "
                f"or is damaged or edited from epoch {len(log.records) + 1} on: {self._remedy(log)}"
            )
        if self.verified and log.after(saved.log or "") != saved.epoch:
            raise UserError(
                f"{saved.file}: does not belong to {log.file.name} up to epoch {saved.epoch}: put "
                "both back, or start the run anew in another folder"
            )

    def _checkpoint(self, file: Path) -> Checkpoint:
        header, _, body = file.read_bytes().partition(b"\n")
        known = parse_json(header)
        sha256 = known.get("sha256") if isinstance(known, dict) else None
        anew = "start the run anew in another folder"
        previous = file.name == "last.ckpt" and (self.checkpoints / "previous.ckpt").is_file()
        remedy = "delete it to go on from previous.ckpt" if previous else anew
        if sha256 != hashlib.sha256(body).hexdigest():
            raise UserError(f"{file}: truncated or edited (its checksum does not match): {remedy}")
        if known.get("format") not in CHECKPOINT_FORMATS:
            raise UserError(f"{file}: written in format {known.get('format')}, not known here")
        damaged = UserError(f"{file}: not a checkpoint of this run, in spite of its hash: {remedy}")
        try:
            content = torch.load(io.BytesIO(body), "cpu", weights_only=True)
        except Exception:  # an invalid body raises errors of many types
            raise damaged from None
        shape = CHECKPOINT | (LOGS if self.verified else {})
        if not _fits(content, shape) or not _fits(content.get("update", {}), dict):
            raise damaged
        saved = recipes.from_toml(content["recipe"].encode(), str(file))
        recipe = self.recipe()
        if differing := saved.differences(recipe):
            raise UserError(
                f"{file}: was saved with another recipe (it differs in {', '.join(differing)}): "
                f"put back {self.recipe_file} as it was"
            )
        members, living = recipe.members(), list(content["living"])
        counts = [content["wrong"], content["loss"]]
        if (
            content["epoch"] < 0
            or content["minibatch"] < 0
            or living != sorted(set(living) & set(range(len(members))))
            or any(count.shape != (len(members),) for count in counts)
        ):
            raise damaged
        net = recipe.network.build([members[i] for i in living]) if living else None
        if net is not None:
            try:
                net.load_state_dict(content["parameters"])
            except (RuntimeError, TypeError, AttributeError):
                raise damaged from None
        return Checkpoint(
            file=file,
            epoch=content["epoch"],
            minibatch=content["minibatch"],
            seconds=content["seconds"],
            living=living,
            non_finite=list(content["frozen"]),
            wrong=content["wrong"].double(),
            loss=content["loss"].double(),
            net=net,
            update=content.get("update", {}),  # plain descent has no state
            log=content.get("log"),
            angles_log=content.get("angles_log"),
        )


class RunWriter:
    """Writes to the folder, from the start of a run or from its checkpoint, under the lock."""

    def __init__(self, folder: RunFolder, recipe: Recipe, data: Dataset, resume: bool) -> None:
        self.folder, self.recipe = folder, recipe
        described = {"name": data.name, "folder": data.folder, **data.fingerprint}
        self._origin: dict[str, Any] = {"format": FORMAT, "data": described, "sessions": []}
        self.saved: Checkpoint | None = None
        if resume:
            self._origin = folder.origin() or self._origin
            self._check_data(data)
            self.saved = folder.checkpoint()
        root = _root(recipe, self._origin["data"])
        self._metrics, self._angles = (
            Log(folder.path / name, root) for name in ("metrics.jsonl", "angles.jsonl")
        )
        self._angles_kept = self._check_progress() if resume else 0
        self._earlier = list(self._origin["sessions"])
        self._session: dict[str, Any] = {}

    def _check_data(self, data: Dataset) -> None:
        differing = self.folder.other_data(data)
        if differing is not None:
            was, now = self._origin["data"][differing]["sha256"], data.fingerprint[differing]
            raise UserError(
                f"{self.folder.path}: was trained on other images (SHA-256 of those to "
                f"{differing} was {was[:12]}…, is {now['sha256'][:12]}…): give the folder that it "
                "used with --data, or choose another --out"
            )

    def _check_progress(self) -> int:
        """Raise if the run cannot continue from its checkpoint; return how many angles to keep."""
        path, saved = self.folder.path, self.saved
        if saved is None and (self._metrics.lines > 1 or (path / "summary.json").exists()):
            raise UserError(f"{path}: has no checkpoint to go on from: choose another --out")
        begun = saved.epoch + (saved.minibatch > 0) if saved else 0
        done = max(begun, len(self._metrics.records))
        if self.recipe.epochs < done:
            raise UserError(
                f"epochs: {self.recipe.epochs} are fewer than the {done} that {path} has begun "
                "already: ask for as many at least"
            )
        if saved is None or not self._angles.lines:
            return 0
        kept = self._angles.after(saved.angles_log or "")
        if kept is None:
            raise UserError(
                f"{self._angles.file}: damaged or edited after minibatch "
                f"{self._angles.records[-1]['minibatch'] if self._angles.records else 0}: "
                "put it back, or delete it"
            )
        return kept

    def start(self, session: dict[str, Any]) -> list[dict[str, Any]]:
        """Cut the logs back to the checkpoint; return the metrics so far.

        `session` holds the facts of the session that starts now.
        """
        path = self.folder.path
        self._session = session
        for left_over in (*path.glob("*.new"), *self.folder.checkpoints.glob("*.new")):
            left_over.unlink()
        (path / "summary.json").unlink(missing_ok=True)
        self._metrics.keep(self.saved.epoch if self.saved else 0)
        self._angles.keep(self._angles_kept)
        write_whole(path / "run.json", as_json(self._origin))
        write_whole(self.folder.recipe_file, self.recipe.to_toml().encode())  # last: marks a run
        return list(self._metrics.records)

    def append(self, record: dict[str, Any]) -> None:
        self._metrics.append(record)

    def append_angles(self, record: dict[str, Any]) -> None:
        self._angles.append(record)

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint, and the duration of the run so far."""
        checkpoints, buffer = self.folder.checkpoints, io.BytesIO()
        checkpoints.mkdir(exist_ok=True)
        logs = {"log": self._metrics.head, "angles_log": self._angles.head}
        torch.save({"recipe": self.recipe.to_toml(), **logs, **state}, buffer)
        body = buffer.getvalue()
        header = {"format": CHECKPOINT_FORMATS[-1], "sha256": hashlib.sha256(body).hexdigest()}
        last, previous = checkpoints / "last.ckpt", checkpoints / "previous.ckpt"
        new = write_beside(last, json.dumps(header).encode() + b"\n" + body)
        if last.is_file():
            os.replace(last, previous)
        os.replace(new, last)
        session = {**self._session, "wall_seconds": round(state["seconds"], 3)}
        self._origin["sessions"] = [*self._earlier, session]
        write_whole(self.folder.path / "run.json", as_json(self._origin))

    def finish(self) -> None:
        """Write the summary of a complete run."""
        write_whole(self.folder.path / "summary.json", as_json(self.folder.summary()))


def _root(recipe: Recipe, data: dict[str, Any]) -> str:
    """Return the hash before the first line of a log: of all that determines the numbers."""
    splits = [data[name] for name in ("train", "test", "validation") if name in data]
    told = [recipe.determining(), *splits]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _fits(value: Any, shape: Any) -> bool:
    """Return whether a value has the types of a shape.

    A shape is a type, a dict of required keys and their shapes, or a list of one shape for all
    items.
    """
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            key in value and _fits(value[key], inner) for key, inner in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    return isinstance(value, shape) and (shape is not int or not isinstance(value, bool))


def _is_epoch(record: Any, members: int) -> bool:
    """Return whether a line of the metrics has an epoch and one value per member and quantity."""
    if not _fits(record, {"epoch": int, "train_error": [ERROR]}):
        return False
    for key, value in record.items():
        lists = value.values() if key in TABLES and isinstance(value, dict) else [value]
        if key in LEFT:
            if not _fits(value, LEFT[key]):
                return False
        elif key != "epoch" and not all(_fits(v, [ERROR]) and len(v) == members for v in lists):
            return False
    return True


def _is_left_over(file: Path) -> bool:
    """Return whether a run that was killed at its start may have left this file."""
    return file.name in (".lock", "run.json") or file.name.endswith(".new")
