"""The interface of data set formats."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from eqprop.splits import Dataset

Files = dict[str, bytes]  # {name: unpacked content}, as in the cache
Source = tuple[str, Callable[[], Files]]  # (description, function that fetches the files)


class FileSet(ABC):
    """Reads, fetches, verifies and decodes the files of a data set."""

    described: str  # the files that a folder must have, in words

    @abstractmethod
    def read(self, folder: Path) -> Files:
        """Return the files of a folder."""

    @abstractmethod
    def sources(self, mirrors: tuple[str, ...] | None = None) -> Iterator[Source]:
        """Yield the sources of the files, best first; `mirrors` replaces the default mirrors."""

    @abstractmethod
    def dataset(self, name: str, files: Files) -> Dataset:
        """Verify the files; return the samples."""
