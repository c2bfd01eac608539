"""Oracle: the work done directly. Graphs of a GPU, recorded by stand-ins that need none."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from eqprop.engines import graphs
from eqprop.engines.graphs import Graphs
from tests.graphs_on_cpu import GPU, Recorded

pytestmark = pytest.mark.usefixtures("graphs_on_cpu")


def a_work(steps: int) -> tuple[Graphs, Tensor, Callable[[], None]]:
    """A number, and work whose steps do not commute; before, between and after them is more."""
    number = torch.ones((), dtype=torch.float64)
    several = Graphs(GPU, [number])

    def work() -> None:
        number.add_(1)
        for t in range(steps):
            several.step()
            number.mul_(1.5).add_(t)

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
    found: list[int] = []

    def work() -> None:
        for t in range(30):
            several.step()
            found.append(t)

    several.replay("work", work)
    assert found == [*range(30)]
    assert not Recorded.all


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_work_ends_before_the_step_that_is_told_so(device: str) -> None:
    number = torch.ones((), dtype=torch.float64)
    several = Graphs(torch.device(device), [number])
    asked = 0

    def work() -> Iterator[None]:
        number.add_(1)
        for t in range(7):
            yield
            number.mul_(1.5).add_(t)

    expected = 1.0
    for most in (3, 7, 1, 100):
        asked = 0

        def ended(most: int = most) -> bool:
            nonlocal asked
            asked += 1
            return asked > most

        several.replay_until("work", work, ended)
        expected += 1
        for t in range(min(most, 7)):
            expected = 1.5 * expected + t
        assert float(number) == expected
        assert asked == min(most + 1, 7)  # once before each step
    assert len(Recorded.all) == (7 if device == "cuda" else 0)


def test_a_capture_that_waits_for_a_number_fails() -> None:
    """As on a GPU: so the stand-in finds what could not be captured there."""
    several, number, _ = a_work(0)
    with pytest.raises(AssertionError, match="can't wait"):
        several.replay("work", lambda: print(float(number)))
