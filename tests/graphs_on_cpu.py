"""Captured graphs of a GPU, on a CPU: each replay does what was done while one was captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eqprop.engines.graphs import Graphs

GPU = torch.device("cuda")


class Recorded(TorchDispatchMode):
    """In the place of `torch.cuda.CUDAGraph`.

    What is done while it captures leaves no trace. A replay does it again, in the same memory.
    """

    all: ClassVar[list[Recorded]] = []
    capturing: ClassVar[Recorded | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Callable[[], object]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        Recorded.all.append(self)

    def capture_begin(self, pool: object) -> None:
        assert Recorded.capturing is None
        self.memory, Recorded.capturing = pool, self
        self.__enter__()

    def capture_end(self) -> None:
        assert Recorded.capturing is self
        Recorded.capturing = None
        self.__exit__(None, None, None)
        for storage, before in self._before.values():
            storage.copy_(before)

    def pool(self) -> object:
        return self.memory

    def replay(self) -> None:
        with torch.no_grad():
            for function in self.done:
                function()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError("a captured graph can't wait for numbers")
        given = dict(zip((it.name for it in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _tensors(given.get(argument.name)):
                    storage = tensor.untyped_storage()
                    self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        found = func(*args, **kwargs)
        read = _tensors((args, kwargs))
        made = [None if _shares(it, read) else it for it in _tensors(found)]

        def again() -> None:
            new = _tensors(func(*args, **kwargs))
            for old, it in zip(made, new, strict=True):
                if old is not None:
                    old.copy_(it)

        self.done.append(again)
        return found


def _tensors(given: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]


def _shares(tensor: Tensor, others: list[Tensor]) -> bool:
    place = tensor.untyped_storage().data_ptr()
    return any(place == other.untyped_storage().data_ptr() for other in others)


class Stream:
    def wait_stream(self, other: Stream) -> None: ...


@pytest.fixture
def graphs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorded]]:
    """Stand-ins for what `Graphs` takes from `torch.cuda`; yields the graphs, as they are made."""
    for name, stand_in in {
        "CUDAGraph": Recorded,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda _: nullcontext(),
        "device": lambda _: nullcontext(),
        "synchronize": lambda: None,
        "graph_pool_handle": object,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(Recorded, "all", [])
    yield Recorded.all
    assert Recorded.capturing is None


def captured(device: torch.device, moved: list[Tensor]) -> Graphs:
    """In the place of `Graphs`, for an engine on a CPU."""
    return Graphs(GPU, moved)
