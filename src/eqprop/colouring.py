"""Proper colourings: groups of layers that can move at once because none sees another."""

from __future__ import annotations

from collections.abc import Sequence


def colours(vertices: int, edges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """The vertices 0 … n−1 in groups, so that no edge joins two of one group.

    Next comes the vertex whose neighbours have the most colours, the first of them where several
    do; it takes the first colour that none of them has. That gives two groups wherever two are
    enough (a connected part is then never left before it is done), and few elsewhere.
    """
    neighbours: list[set[int]] = [set() for _ in range(vertices)]
    for a, b in edges:
        neighbours[a].add(b)
        neighbours[b].add(a)
    colour: dict[int, int] = {}
    while len(colour) < vertices:
        taken = {
            v: {colour[u] for u in neighbours[v] if u in colour}
            for v in range(vertices)
            if v not in colour
        }
        v = max(taken, key=lambda v: (len(taken[v]), -v))
        colour[v] = next(c for c in range(vertices) if c not in taken[v])
    groups = range(max(colour.values()) + 1)
    return tuple(tuple(v for v in range(vertices) if colour[v] == c) for c in groups)
