"""Oracle: the work done directly. Graphs of a GPU, recorded by stand-ins that need none."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch

from eqprop.engines import graphs
from eqprop.engines.graphs import Graphs


class Recorded:
    """Records what is done while it captures, and does it when it is replayed."""

    all: ClassVar[list["Recorded"]] = []
    capturing: ClassVar["Recorded | None"] = None

    def __init__(self) -> None:
        self.done: list[Callable[[], object]] = []
        Recorded.all.append(self)

    def capture_begin(self, pool: object) -> None:
        assert Recorded.capturing is None
        self.memory, Recorded.capturing = pool, self

    def capture_end(self) -> None:
        assert Recorded.capturing is self
        Recorded.capturing = None

    def pool(self) -> object:
        return self.memory

    def replay(self) -> None:
        for function in self.done:
            function()


class Stream:
    def wait_stream(self, other: "Stream") -> None: ...


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
    yield
    assert Recorded.capturing is None


def do(function: Callable[[], object]) -> None:
    if Recorded.capturing is None:
        function()
    else:
        Recorded.capturing.done.append(function)


def a_work(steps: int) -> tuple[Graphs, torch.Tensor, Callable[[], None]]:
    """A number, and work whose steps do not commute; before, between and after them is more."""
    number = torch.ones((), dtype=torch.float64)
    several = Graphs(torch.device("cuda"), [number])

    def work() -> None:
        do(lambda: number.add_(1))
        for t in range(steps):
            several.step()
            do(lambda t=t: number.mul_(1.5).add_(t))

    return several, number, work


def directly(steps: int, times: int) -> float:
    number = 1.0
    for _ in range(times):
        number += 1
        for t in range(steps):
            number = 1.5 * number + t
    return number


@pytest.mark.parametrize("steps", [0, 1, graphs.STEPS, graphs.STEPS + 1, 2 * graphs.STEPS, 53])
def test_graphs_do_the_work_once_per_replay(steps: int) -> None:
    several, number, work = a_work(steps)
    for times in range(1, 4):
        several.replay("work", work)
        assert float(number) == directly(steps, times)
    assert len(Recorded.all) == max(1, -(-steps // graphs.STEPS))
    assert all(graph.done for graph in Recorded.all)
    assert len({id(graph.memory) for graph in Recorded.all}) == 1


def test_other_work_has_graphs_and_memory_of_its_own() -> None:
    several, number, work = a_work(30)
    several.replay("one", work)
    several.replay("other", work)
    assert float(number) == directly(30, 2)
    assert len(Recorded.all) == 4
    assert len({id(graph.memory) for graph in Recorded.all}) == 2
    several.forget("one")
    several.replay("one", work)
    assert len(Recorded.all) == 6


def test_work_that_fails_while_it_is_captured_ends_its_graph() -> None:
    several, number, work = a_work(30)

    def fails() -> None:
        work()
        if Recorded.capturing:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        several.replay("work", fails)
    assert float(number) == 1  # the run that warms up is undone
    several.replay("work", work)
    assert float(number) == directly(30, 1)


def test_on_a_cpu_the_work_is_done() -> None:
    several = Graphs(torch.device("cpu"), [])
    found: list[Any] = []

    def work() -> None:
        for t in range(30):
            several.step()
            found.append(t)

    several.replay("work", work)
    assert found == [*range(30)]
    assert not Recorded.all
