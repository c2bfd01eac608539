"""Proper colourings: groups of layers that can move together because no synapse joins them."""

from __future__ import annotations

from collections.abc import Sequence


def colours(vertices: int, edges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Split the vertices 0 … n−1 into groups so that no edge joins two vertices of one group.

    This is DSATUR: the next vertex is the one whose neighbours have the most colours (the lowest
    number on a tie), and it takes the first colour that no neighbour has. A bipartite graph gets
    at most two groups, any other graph few.

    Args:
        vertices: n, the number of vertices.
        edges: pairs of vertices.
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
