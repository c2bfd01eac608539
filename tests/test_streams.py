"""Oracle: identity. Parts that a GPU runs at the same time touch nothing that another one writes.

A CPU runs one part after another, so parity can't see a race. Here every operation of every part is
recorded: the memory that it reads and writes, and in whose part that memory was allocated.
"""

from collections.abc import Callable, Collection
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import eqprop
from eqprop.engines.convolutional.streams import Streams
from tests.test_convolutional import (
    GRAPHS,
    RULES,
    a_graph,
    a_minibatch,
    a_network,
    a_rule,
    any_order,
    any_rule,
)

Place = int  # of memory, unique as long as the recorder lives
Part = tuple[Streams, int]


class Recorder(TorchDispatchMode):
    """Records what each part reads and writes, and whose memory dies when."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: dict[int, set[Place]] = {}
        self.writes: dict[int, set[Place]] = {}
        self.owners: dict[Place, Part] = {}  # of memory that was allocated in a part
        self.seen: dict[Place, StorageWeakRef] = {}
        self.part: Part | None = None
        self.shared = 0  # how often several parts ran at the same time

    def place(self, tensor: Tensor) -> Place:
        reference = StorageWeakRef(tensor.untyped_storage())
        return self.seen.setdefault(reference.cdata, reference).cdata

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if self.part is None:
            return found
        _, k = self.part
        given = dict(zip((it.name for it in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            info = argument.alias_info
            written = info is not None and info.is_write
            touched = self.writes if written else self.reads
            for tensor in _tensors(given.get(argument.name)):
                touched[k].add(self.place(tensor))
        for tensor in _tensors(found):
            if StorageWeakRef(tensor.untyped_storage()).cdata not in self.seen:
                self.owners[self.place(tensor)] = self.part
                self.writes[k].add(self.place(tensor))
        return found

    def each(self, streams: Streams, parts: Collection[int], work: Callable[[int], None]) -> None:
        """In place of `Streams.each`: do the work, and check that no two parts collide."""
        parts = list(parts)
        assert len(set(parts)) == len(parts)
        self.reads, self.writes = ({k: set() for k in parts} for _ in range(2))
        self.shared += len(parts) > 1
        for k in parts:
            self.part = streams, k
            work(k)
        self.part = None
        for k in parts:
            for other in parts:
                if other != k:
                    touched = self.reads[other] | self.writes[other]
                    assert not self.writes[k] & touched, f"part {other} touches what {k} writes"
            # else the owner may allocate it again, while this part still reads it
            for place in self.reads[k] | self.writes[k]:
                owner = self.owners.get(place)
                others = owner not in (None, (streams, k))
                assert not (others and self.seen[place].expired()), f"{k} outlives what it reads"


def _tensors(given: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(Streams, "each", lambda *given: recorder.each(*given))
    return recorder


def learn(recorder: Recorder, net: eqprop.Network, rule: eqprop.Rule, precision=None) -> None:
    engine = eqprop.make_engine(net, rule, 0.01, "convolutional", precision=precision)
    with recorder:
        for m in range(2):
            engine.step(*a_minibatch(net, m))
    assert recorder.shared


@any_rule
@any_order
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("nudging", [eqprop.OneSided, eqprop.Centred])
def test_no_part_of_a_chain_touches_what_another_one_writes(
    kind, tying, orders, precision, nudging, recorder
):
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, nudging=nudging(0.3), in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    net = a_network("three convolutions", tying=tying, dtype=torch.float32)
    learn(recorder, net, rule, precision)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("kind", "tying"), RULES)
@pytest.mark.parametrize("in_turn", [False, True])
def test_no_part_of_a_graph_touches_what_another_one_writes(graph, kind, tying, in_turn, recorder):
    rule = a_rule(kind, in_turn=in_turn, nudged_in_turn=in_turn)
    learn(recorder, a_graph(graph, tying=tying), rule)


def _add(into: Tensor, k: int) -> None:
    into.add_(k)


def _keep(made: dict[int, Tensor], k: int) -> None:
    made[k] = torch.zeros(3)


def _read_and_drop(made: dict[int, Tensor], k: int) -> None:
    made.pop(1 - k).add(1)


def test_the_recorder_sees_parts_that_collide(recorder):
    streams = Streams(2, torch.device("cpu"))
    made: dict[int, Tensor] = {}
    with recorder:
        streams.each([0], partial(_add, torch.zeros(3)))
        streams.each([0, 1], partial(_keep, made))
        with pytest.raises(AssertionError, match="part 1 touches what 0 writes"):
            streams.each([0, 1], partial(_add, torch.zeros(3)))
        with pytest.raises(AssertionError, match="outlives what it reads"):
            streams.each([0, 1], partial(_read_and_drop, made))
