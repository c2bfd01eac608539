"""Sources: the documents that support a reading of the paper.

Only a reading with a source gets a verdict. A reading that was found by trial has no source: the
report notes its result, but no row passes because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    TEXT = "the text"
    RELEASE = "the released code"
    HISTORY = "the history of the code"


@dataclass(frozen=True)
class Source:
    """A document, and the place in it."""

    kind: Kind
    place: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}"
