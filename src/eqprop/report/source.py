"""What says that a result of a paper was made in a certain way: a reading needs a source.

A verdict is given for a reading with a source. A reading that was found by trial has none: what
it gives is noted, and makes no row pass.
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
