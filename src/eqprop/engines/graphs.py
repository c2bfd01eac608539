"""Work that a GPU repeats as captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Graphs:
    """Captured graphs by name. On a CPU the work is simply done.

    Args:
        device: where the work is done.
        moved: what the work changes for good: put back after the run that warms up.
    """

    def __init__(self, device: torch.device, moved: Sequence[Tensor]) -> None:
        self._device, self._moved = device, moved
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def forget(self, name: str) -> None:
        """Capture this graph anew at its next replay: something that it reads has moved."""
        self._graphs.pop(name, None)

    def replay(self, name: str, work: Callable[[], None]) -> None:
        """Do the work of this name, always the same operations on the same memory."""
        if self._device.type != "cuda":
            with torch.no_grad():
                work()
            return
        with torch.cuda.device(self._device):
            if name not in self._graphs:
                self._graphs[name] = self._captured(work)
            self._graphs[name].replay()

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Run once on a side stream to warm up, undo what that did, then capture."""
        before = [tensor.clone() for tensor in self._moved]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(self._moved, before, strict=True):
            tensor.copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            work()
        return graph
