"""Work that a GPU repeats as captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

STEPS = 20  # per graph: work on several streams slows down in graphs of thousands of kernels


class Graphs:
    """Captured graphs by name. On a CPU the work is simply done.

    Args:
        device: where the work is done.
        moved: what the work changes for good: put back after the run that warms up.
    """

    def __init__(self, device: torch.device, moved: Sequence[Tensor]) -> None:
        self._device, self._moved = device, moved
        self._graphs: dict[str, list[torch.cuda.CUDAGraph]] = {}
        self._captured: list[torch.cuda.CUDAGraph] = []  # of the work that is being captured
        self._steps, self._most = 0, STEPS  # of the last graph

    def forget(self, name: str) -> None:
        """Capture this work anew at its next replay: something that it reads has moved."""
        self._graphs.pop(name, None)

    def replay(self, name: str, work: Callable[[], None]) -> None:
        """Do the work of this name, always the same operations on the same memory."""
        if self._device.type != "cuda":
            with torch.no_grad():
                work()
            return
        with torch.cuda.device(self._device):
            if name not in self._graphs:
                self._graphs[name] = self._capture(work, STEPS)
            for graph in self._graphs[name]:
                graph.replay()

    def replay_until(
        self, name: str, work: Callable[[], Iterator[None]], ended: Callable[[], bool]
    ) -> None:
        """Do the steps of the work of this name until one finds that it has ended.

        Args:
            name: of the work.
            work: yields before each of its steps, and at least once. Each step is a graph.
            ended: whether the work has ended. Called before each step.
        """
        if self._device.type != "cuda":
            with torch.no_grad():
                for _ in work():
                    if ended():
                        return
            return

        def all_steps() -> None:
            for _ in work():
                self.step()

        with torch.cuda.device(self._device):
            if name not in self._graphs:
                self._graphs[name] = self._capture(all_steps, 1)
            for graph in self._graphs[name]:
                if ended():
                    return
                graph.replay()

    def step(self) -> None:
        """Begin a step of the work, and another graph if this one has many steps.

        The work calls it when none of its streams is ahead.
        """
        if self._captured and self._steps == self._most:
            self._captured[-1].capture_end()
            self._begin()
        self._steps += 1

    def _begin(self) -> None:
        """Capture what follows. Graphs that are replayed one after another share their memory."""
        pool = self._captured[0].pool() if self._captured else torch.cuda.graph_pool_handle()
        self._captured.append(torch.cuda.CUDAGraph())
        self._captured[-1].capture_begin(pool)
        self._steps = 0

    def _capture(self, work: Callable[[], None], most: int) -> list[torch.cuda.CUDAGraph]:
        """Run once on a side stream to warm up, undo what that did, then capture, with at most so
        many steps per graph.
        """
        before = [tensor.clone() for tensor in self._moved]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(self._moved, before, strict=True):
            tensor.copy_(value)
        torch.cuda.synchronize()
        self._most = most
        with torch.no_grad(), torch.cuda.stream(stream):
            self._begin()
            try:
                work()
            finally:
                found, self._captured = self._captured, []
                found[-1].capture_end()
        return found
