"""Run tasks on a Ray cluster: one Ray task per ensemble.

Workers get only the code, the recipe and the name of the data set. A worker that sees the folder of
the sweep trains in it, and resumes there after another worker was lost. A worker that does not see
it trains in its own folder, from the beginning, and sends the finished run folder.
"""

from __future__ import annotations

import io
import logging
import os
import secrets
import shutil
import socket
import tarfile
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import eqprop
from eqprop.runs.files import write_whole
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import UserError
from eqprop.sweeps import extras, worker
from eqprop.sweeps.worker import Ended, Job, State

TOKEN = ".driver"  # file in the folder of a sweep: a worker that reads it sees the folder
ARRIVING = ".arriving"
LOOPBACK = "127.0.0.1"
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # avoid a warning of Ray
}


@dataclass
class Cluster:
    """Runs the tasks of a sweep on a Ray cluster.

    Args:
        out: the folder of the sweep.
        address: address of the cluster. None: start one on this machine for the sweep.
        retries: number of restarts of a task whose worker was lost.
        cpus, gpus: numbers that Ray reserves per task.
    """

    out: Path
    address: str | None
    retries: int
    cpus: int
    gpus: int
    _ray: Any = field(init=False)
    _token: str = field(default_factory=lambda: secrets.token_hex(16))
    _jobs: dict[str, Job] = field(default_factory=dict)
    _pending: dict[Any, str] = field(default_factory=dict)  # reference -> task

    def __enter__(self) -> Self:
        self._ray = extras.ray()
        write_whole(self.out / TOKEN, self._token.encode())
        shutil.rmtree(self.out / ARRIVING, ignore_errors=True)
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        where: dict[str, Any]
        if self.address is None:
            # Ray's store listens on every address of the machine. The token keeps others out: Ray
            # asks for one where it starts a cluster, unless RAY_AUTH_MODE says otherwise.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            where = {"include_dashboard": False, "_node_ip_address": LOOPBACK}
        else:
            code = {"py_modules": [str(Path(eqprop.__file__).parent)]}
            where = {"address": self.address, "runtime_env": code}
        try:
            if self.address is not None:
                _knock(self.address)
            self._ray.init(**where, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            if self.address is None:
                raise UserError(f"--on ray: Ray does not start here: {first}") from None
            raise UserError(
                f"--address {self.address}: no Ray cluster answers ({first}): start one with "
                "`ray start --head`, or leave out --address"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ray.shutdown()

    def submit(self, name: str, job: Job) -> None:
        how = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": self.retries}
        remote = self._ray.remote(_train_there).options(name=name, **how)
        self._jobs[name] = job
        self._pending[remote.remote(job, str(self.out.absolute()), self._token)] = name

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    @property
    def running(self) -> set[str]:
        """The tasks whose run folder is visible here. Only Ray knows about the others."""
        return {n for n in self._pending.values() if RunFolder(self._jobs[n].folder).begun}

    @property
    def lacking(self) -> str | None:
        """The resources of a task, if no machine has them; None if one has."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        for node in self._ray.nodes():
            there = node["Resources"] if node["Alive"] else {}
            if all(there.get(resource, 0) >= number for resource, number in wanted.items()):
                return None
        return f"{self.cpus} CPU(s) and {self.gpus} GPU(s)"

    def stop(self) -> None:
        """Tell the tasks to save and stop, and start no more."""
        for reference in self._pending:
            self._ray.cancel(reference)  # acts as Ctrl-C in the worker

    def wait(self, seconds: float) -> list[tuple[str, Ended]]:
        """Wait at most this long for a task to end; return the tasks that have ended."""
        references = list(self._pending)
        ready, _ = self._ray.wait(references, num_returns=1, timeout=seconds)
        return [(name := self._pending.pop(it), self._result(name, it)) for it in ready]

    def _result(self, name: str, reference: Any) -> Ended:
        errors = self._ray.exceptions
        try:
            ended, packed = self._ray.get(reference)
        except errors.TaskCancelledError:
            return Ended(State.STOPPED)
        except errors.WorkerCrashedError:
            return Ended(State.FAILED, f"its worker was lost {self.retries + 1} times")
        except errors.RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return Ended(State.FAILED, lines[-1] if lines else type(error).__name__)
        if packed is not None:
            self._unpack(packed, Path(self._jobs[name].folder))
        return Ended(ended.state, ended.message)

    def _unpack(self, packed: bytes, folder: Path) -> None:
        """Move a finished run folder to its place, complete or not at all."""
        arriving = self.out / ARRIVING / folder.name
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(arriving, filter="data")
        folder.parent.mkdir(exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        arriving.rename(folder)


def _knock(address: str) -> None:
    """Raise `OSError` if nothing listens at the address. Ray would take minutes to find out."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5).close()


def _train_there(job: Job, out: str, token: str) -> tuple[Ended, bytes | None]:
    """Train a job on this worker; return also its run folder if the driver cannot see it."""
    file = Path(out) / TOKEN
    if file.is_file() and file.read_text() == token:
        return worker.run(job), None
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own) / "run"
        ended = worker.run(replace(job, folder=str(folder)))
        return ended, _packed(folder) if ended.state is State.DONE else None


def _packed(folder: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(folder, arcname=".")
    return content.getvalue()
