"""Peak memory of a computation: the most bytes that its tensors hold at any one time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """Measure the peak memory of a block: `with Peak() as peak: ...`, then `peak.bytes`.

    Only tensors that the block creates count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._now = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(storage) for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage not in self._seen and id(storage) not in given:  # neither view nor in place
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        self._seen.add(storage)
        size = storage.nbytes()
        self._now += size
        self.bytes = max(self.bytes, self._now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._now -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
