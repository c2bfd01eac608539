"""Work on several layers or synapses at the same time."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch


class Streams:
    """One stream of a GPU per part of a network: a layer, or a synapse. Elsewhere parts come one
    after another.

    Small convolutions leave part of a GPU idle, and so does what lies between them. Other parts
    fill the gaps.

    Args:
        count: the largest number of parts.
        device: where they are.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        several = range(count) if device.type == "cuda" else ()
        self._streams = [torch.cuda.Stream(device) for _ in several]

    def each(self, parts: Collection[int], work: Callable[[int], None]) -> None:
        """Do the work for each part. It must not touch what the work for another one writes."""
        if not self._streams:
            for k in parts:
                work(k)
            return
        here, used = torch.cuda.current_stream(), [self._streams[k] for k in parts]
        for k, stream in zip(parts, used, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                work(k)
        for stream in used:
            here.wait_stream(stream)
