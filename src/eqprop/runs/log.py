"""A log: lines of JSON, chained by hashes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eqprop.runs.files import parse_json, write, write_whole

HASH = b', "hash": "'  # the hash is the last item of a line


class Log:
    """Lines of JSON. Each ends with a hash of itself and of the hash before it.

    `records` holds the records up to the first invalid line, without their hashes.

    Args:
        file: the file. It may not exist yet.
        root: the hash before the first line. None: do not verify the hashes.
        fits: given a record and its line number from 1, returns whether the record is valid.
    """

    def __init__(
        self,
        file: Path,
        root: str | None,
        fits: Callable[[Any, int], bool] = lambda record, number: True,
    ) -> None:
        self.file = file
        lines = file.read_bytes().splitlines() if file.is_file() else []
        self.lines, self.records, self._hashes = len(lines), [], [root or ""]
        for number, line in enumerate(lines, start=1):
            body, hashed, told = line.rpartition(HASH)
            expected = _hash(self.head, body)
            record = parse_json(body + b"}" if hashed else line)
            if not fits(record, number) or (root is not None and told != b'%s"}' % expected):
                break
            self.records.append(record)
            self._hashes.append(expected.decode())

    @property
    def whole(self) -> bool:
        return len(self.records) == self.lines

    @property
    def head(self) -> str:
        return self._hashes[-1]

    def after(self, hash: str) -> int | None:
        """Return the number of records when the head was this hash; None if it never was."""
        return self._hashes.index(hash) if hash in self._hashes else None

    def keep(self, number: int) -> None:
        """Keep the first `number` records and drop every later line."""
        if self.lines:
            lines = self.file.read_bytes().splitlines()[:number]
            write_whole(self.file, b"".join(line + b"\n" for line in lines))
        self.records, self._hashes = self.records[:number], self._hashes[: number + 1]
        self.lines = number

    def append(self, record: dict[str, Any]) -> None:
        body = json.dumps(record).encode().removesuffix(b"}")
        head = _hash(self.head, body)
        write(self.file, body + HASH + head + b'"}\n', os.O_APPEND)
        self.records.append(record)
        self._hashes.append(head.decode())
        self.lines += 1


def _hash(before: str, body: bytes) -> bytes:
    return hashlib.sha256(before.encode() + body).hexdigest()[:16].encode()
