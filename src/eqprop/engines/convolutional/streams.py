"""Work on several layers at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class Streams:
    """One stream of a GPU per layer. Elsewhere layers come one after another.

    Small convolutions leave part of a GPU idle, and so does what lies between them. Other layers
    fill the gaps.

    Args:
        count: number of layers.
        device: where they are.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        several = range(count) if device.type == "cuda" else ()
        self._streams = [torch.cuda.Stream(device) for _ in several]

    def each(self, layers: Iterable[int], work: Callable[[int], None]) -> None:
        """Do the work for each layer. It must not touch what the work for another one writes."""
        if not self._streams:
            for k in layers:
                work(k)
            return
        here, used = torch.cuda.current_stream(), [self._streams[k] for k in layers]
        for k, stream in zip(layers, used, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                work(k)
        for stream in used:
            here.wait_stream(stream)
