"""A data set as files: what every format says of itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from eqprop.splits import Dataset

Files = dict[str, bytes]  # name -> content, unpacked; the cache keeps them so
Source = tuple[str, Callable[[], Files]]  # in words, and how to fetch from it


class FileSet(ABC):
    """How the files of a data set are read, fetched, verified and decoded."""

    described: str  # what a folder must hold, in words

    @abstractmethod
    def read(self, folder: Path) -> Files:
        """The files from a folder."""

    @abstractmethod
    def sources(self, mirrors: tuple[str, ...] | None = None) -> Iterator[Source]:
        """Where to fetch the files, the preferred source first; `mirrors` instead of its own."""

    @abstractmethod
    def dataset(self, name: str, files: Files) -> Dataset:
        """The samples, once the files have been verified."""
