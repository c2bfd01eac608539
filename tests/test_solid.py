"""An engine checks at every call what it hands to compiled code.

Oracle: the message of the refusal, or the reference engine. What could crash the interpreter runs
in a process of its own.
"""

import copy
import dataclasses
import subprocess
import sys
import textwrap
import types

import pytest
import torch

import eqprop
from eqprop import engines, memory
from eqprop.cli import main
from eqprop.data import Normalisation, Split
from eqprop.engines import NativeEngine, ReferenceEngine
from eqprop.memory import NotEnoughMemory
from tests.cuda_on_cpu import NaiveEngine
from tests.test_engines import FAST, distance, minibatch, needs_compiler

SIZES = (6, 9, 9, 4)
RULE = eqprop.ContinualEP(beta=0.2, free_steps=9, nudged_steps=4)
EVERY = ["reference", *FAST, "persistent"]
COMPILED = [*FAST, "persistent"]


def a_network(**more):
    return eqprop.layered(*SIZES, **({"dtype": torch.float64} | more))


def an_engine(net, kind, rule=RULE, rate=0.05):
    """`persistent` is its readable kernel, which needs no GPU."""
    plain = eqprop.make_engine(net, rule, rate, "reference")
    if kind == "persistent":
        return NaiveEngine(plain.job, 1)
    return plain if kind == "reference" else eqprop.make_engine(net, rule, rate, kind)


def a_minibatch(dtype=torch.float64):
    x, y = minibatch(0, SIZES, 1, 5, dtype)
    return x[0], y[0]


def a_split(n=40):
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, SIZES[0]), generator=source, dtype=torch.uint8)
    labels = torch.randint(SIZES[-1], (n,), generator=source, dtype=torch.uint8)
    return Split(images, labels, SIZES[-1])


INDEX = torch.arange(30).reshape(3, 10)


def refuses(engine, words):
    """Every call refuses, and no parameter has moved."""
    before = [p.clone() for p in engine.model.parameters()]
    x, y = a_minibatch(engine.model.dtype)
    for call in (
        lambda: engine.step(x, y),
        lambda: engine.relax(x, 5),
        lambda: engine.run(a_split(), INDEX),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert all(torch.equal(p, q) for p, q in zip(engine.model.parameters(), before, strict=True))


def replace(synapse, field, value):
    setattr(synapse, field, torch.nn.Parameter(value, requires_grad=False))


@pytest.mark.parametrize("kind", EVERY)
def test_a_parameter_of_another_shape_is_refused(kind):
    net = a_network()
    engine = an_engine(net, kind)
    replace(net.synapses[1], "weight", torch.zeros(3, 3, dtype=torch.float64))
    words = (
        r"synapses\.1\.weight is torch.float64 \[3, 3\] on cpu, .* \[9, 9\] on cpu: make another"
    )
    refuses(engine, words)


@pytest.mark.parametrize("kind", EVERY)
def test_a_single_parameter_of_another_precision_is_refused(kind):
    net = a_network()
    engine = an_engine(net, kind)
    replace(net.synapses[2], "bias", torch.zeros(4))
    refuses(engine, r"synapses\.2\.bias is torch.float32")


@pytest.mark.parametrize("kind", EVERY)
def test_a_parameter_that_is_gone_is_refused(kind):
    net = a_network()
    engine = an_engine(net, kind)
    net.synapses[1].bias = None
    refuses(engine, r"gained or lost synapses\.1\.bias: make another engine")


def transposed(net):
    net.synapses[1].weight.data = net.synapses[1].weight.data.clone().T


def loaded(net):
    state = net.state_dict()
    state["synapses.1.weight"] = state["synapses.1.weight"].clone().T
    net.load_state_dict(state, assign=True)


def expanded(net):
    replace(net.synapses[1], "weight", torch.zeros(1, 9, dtype=torch.float64).expand(9, 9))


@pytest.mark.parametrize("change", [transposed, loaded, expanded])
@pytest.mark.parametrize("kind", COMPILED)
def test_a_parameter_that_does_not_lie_row_by_row_is_refused(kind, change):
    net = a_network()
    engine = an_engine(net, kind)
    change(net)
    refuses(engine, r"synapses\.1\.weight is not contiguous: assign its contiguous\(\) copy")


def test_the_reference_engine_reads_any_layout():
    net, x, y = a_network(), *a_minibatch()
    engine = eqprop.make_engine(net, RULE, 0.05, "reference")
    transposed(net)
    plain = copy.deepcopy(net)
    plain.synapses[1].weight.data = plain.synapses[1].weight.data.contiguous()
    other = eqprop.make_engine(plain, RULE, 0.05, "reference")
    torch.testing.assert_close(engine.step(x, y), other.step(x, y), rtol=0, atol=1e-14)
    assert distance(engine, other) <= 1e-14
    assert type(eqprop.make_engine(net, RULE, 0.05)) is ReferenceEngine


@pytest.mark.parametrize("kind", COMPILED)
def test_parameters_in_the_same_memory_are_refused(kind):
    net = eqprop.layered(4, 4, 4, 4, dtype=torch.float64)
    engine = an_engine(net, kind)
    net.synapses[2].weight.data = net.synapses[1].weight.data
    with pytest.raises(ValueError, match=r"share their memory: assign a clone\(\)"):
        engine.step(torch.zeros(5, 4, dtype=torch.float64), torch.zeros(5, 4, dtype=torch.float64))
    assert type(eqprop.make_engine(net, RULE, 0.05)) is ReferenceEngine


@pytest.mark.parametrize("kind", COMPILED)
def test_a_parameter_in_another_place_is_found_there(kind):
    net, x, y = a_network(), *a_minibatch()
    engine, slow = an_engine(net, kind), an_engine(copy.deepcopy(net), "reference")
    engine.step(x, y)
    slow.step(x, y)
    for model in (net, slow.model):
        replace(model.synapses[1], "weight", 0.5 * model.synapses[1].weight)
        model.synapses[0].weight.data = 2 * model.synapses[0].weight.data
    torch.testing.assert_close(engine.step(x, y), slow.step(x, y), rtol=0, atol=1e-12)
    assert distance(engine, slow) <= 1e-12


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("labels", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("images", [torch.float32, torch.float64, torch.uint8])
def test_a_split_is_read_as_what_it_is(kind, images, labels):
    """Not as bytes, where it holds none; also where rows or columns are left out."""
    whole = a_split(80)
    wide = torch.cat([whole.images, whole.images], 1)[::2, : SIZES[0]]
    split = Split(wide.to(images), whole.labels[::2].to(labels), whole.classes)
    engine, slow = (an_engine(a_network(), k) for k in (kind, "reference"))
    counts = engine.run(split, INDEX)
    wrong, loss = 0, 0.0
    for index in INDEX:
        x, y = split.batch(index, torch.float64)
        output = slow.step(x, y)
        wrong += int((output.argmax(-1) != y.argmax(-1)).sum())
        loss += float(0.5 * ((output - y) ** 2).sum())
    assert int(counts.wrong) == wrong
    assert float(counts.loss) == pytest.approx(loss, rel=1e-10)
    assert distance(engine, slow) <= 1e-12


@pytest.mark.parametrize("kind", EVERY)
def test_a_normalised_split_is_read_as_what_it_is(kind):
    """Not as bytes, which hold no normalisation."""
    split = dataclasses.replace(
        a_split().shaped((2, 3)), normalisation=Normalisation((0.5, 0.2), (0.5, 0.3))
    )
    engine, slow = (an_engine(a_network(), k) for k in (kind, "reference"))
    engine.run(split.shaped((SIZES[0],)), INDEX)
    for index in INDEX:
        x = split.images[index].double() / 255
        x[:, 0], x[:, 1] = (x[:, 0] - 0.5) / 0.5, (x[:, 1] - 0.2) / 0.3
        slow.step(x.flatten(1), split.labels[index].long())
    assert distance(engine, slow) <= 1e-12


@pytest.mark.parametrize("kind", EVERY)
def test_what_is_no_split_or_no_index_is_refused(kind):
    engine, split = an_engine(a_network(), kind), a_split()

    def changed(**more):
        given = {"images": split.images, "labels": split.labels, "classes": 4} | more
        return types.SimpleNamespace(**given)

    for wrong, words in (
        (changed(images=split.images[:20]), r"images \[20, 6\] and labels \[40\]"),
        (changed(images=split.images[:, 0]), r"images \[40\] and labels \[40\]"),
        (changed(images=split.images[..., None]), r"images \[6, 1\], .* split.shaped\(\(6,\)\)"),
        (changed(images=split.images[:, :3]), r"images \[3\], but the network takes \[6\]"),
        (changed(labels=split.labels.double()), "must be integers"),
        (changed(labels=split.labels.long() - 1), "not below"),
        (changed(labels=split.labels.long() + 1), "not below"),
        (changed(labels=split.labels.to("meta")), "labels of the split are on meta"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.run(wrong, INDEX)
    with pytest.raises(ValueError, match=r"index must hold integers, not torch.float32"):
        engine.run(split, INDEX.float())


SHARED = """
import threading, torch, eqprop
torch.set_num_threads(1)
rule = eqprop.ContinualEP(beta=0.2, free_steps=9, nudged_steps=4)
x, y = torch.rand(20, 30), torch.rand(20, 10)
nets = [eqprop.layered(30, 64, 10, ensemble=4) for _ in range(2)]
together, alone = (eqprop.make_engine(net, rule, 0.01, {kind!r}) for net in nets)
failures = []

def steps():
    try:
        for _ in range(25):
            together.step(x, y)
            together.relax(x[:7], 5)
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=steps) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
for _ in range(100):
    alone.step(x, y)
assert all(torch.equal(p, q) for p, q in zip(nets[0].parameters(), nets[1].parameters()))
print("the same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reference", *FAST])
def test_threads_that_share_an_engine_wait_for_each_other(kind):
    """The same minibatch from four threads: as many steps as one thread takes, bit by bit."""
    code = textwrap.dedent(SHARED).format(kind=kind)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the same\n"


@pytest.mark.parametrize("kind", EVERY)
def test_an_engine_works_on_parameters_that_require_grad(kind):
    x, y = a_minibatch()
    engine, plain = an_engine(a_network(), kind), an_engine(a_network(), kind)
    engine.model.requires_grad_(True)
    output = engine.step(x, y)
    assert torch.equal(output, plain.step(x, y))
    assert not output.requires_grad
    engine.run(a_split(), INDEX)
    plain.run(a_split(), INDEX)
    for p, q in zip(engine.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.requires_grad
        assert p.grad is None


@pytest.mark.parametrize("kind", EVERY)
def test_a_step_that_diverges_is_undone_also_where_parameters_require_grad(kind):
    net = a_network(dtype=torch.float32)
    rule = eqprop.EP(beta=1e-3, free_steps=5, nudged_steps=3)
    engine = an_engine(net, kind, rule, 1e38)
    net.requires_grad_(True)
    before = [p.detach().clone() for p in net.parameters()]
    x, y = a_minibatch(torch.float32)
    for call in (lambda: engine.step(x, y), lambda: engine.run(a_split(), INDEX)):
        with pytest.raises(eqprop.NonFinite):
            call()
        assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("steps", [2**31, 4294967311, 10**30])
def test_more_steps_than_can_be_counted_are_refused(steps):
    for call in (
        lambda: eqprop.EP(beta=0.1, free_steps=5, nudged_steps=steps),
        lambda: eqprop.EP(beta=0.1, free_steps=steps, nudged_steps=5),
        lambda: eqprop.BPTT(free_steps=steps),
        lambda: eqprop.relax(a_network(), a_minibatch()[0], steps),
        lambda: an_engine(a_network(), "reference").relax(a_minibatch()[0], steps),
    ):
        with pytest.raises(ValueError, match=f"must be at most 2147483647, not {steps}"):
            call()


@pytest.mark.parametrize("threads", [0, -1, 257, 100000, 2.0, True])
def test_a_number_of_threads_that_cannot_be(threads):
    with pytest.raises(ValueError, match="threads must be an integer from 1 to 256"):
        eqprop.make_engine(a_network(), RULE, 0.1, threads=threads)


@pytest.mark.slow
@needs_compiler
def test_more_threads_than_the_system_grants_are_done_without():
    """Memory is left for the stacks of some of them: the numbers are the same."""
    code = """
    import resource, torch, eqprop
    torch.set_num_threads(1)
    rule = eqprop.ContinualEP(beta=0.2, free_steps=9, nudged_steps=4)
    x, y = torch.rand(20, 300), torch.rand(20, 10)
    nets = [eqprop.layered(300, 512, 10, ensemble=4) for _ in range(2)]
    one = eqprop.make_engine(nets[0], rule, 0.01, "native", threads=1)
    many = eqprop.make_engine(nets[1], rule, 0.01, "native", threads=256)
    one.step(x, y)
    size = 4096 * int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**26, size + 2**26))  # 64 MB: stacks of 8 MB
    many.step(x, y)
    assert all(torch.equal(p, q) for p, q in zip(nets[0].parameters(), nets[1].parameters()))
    print("the same")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the same\n"


@pytest.mark.slow
@needs_compiler
def test_a_forked_process_and_engines_in_several_threads_have_threads_to_work_with():
    """The helpers of the parent are not in the child; two engines at once share them out."""
    code = """
    import os, threading, torch, eqprop
    torch.set_num_threads(1)
    rule = eqprop.ContinualEP(beta=0.2, free_steps=9, nudged_steps=4)
    x, y = torch.rand(20, 300), torch.rand(20, 10)
    nets = [eqprop.layered(300, 512, 10, ensemble=3) for _ in range(4)]
    made = [eqprop.make_engine(n, rule, 0.01, "native", threads=3) for n in nets]
    alone = eqprop.layered(300, 512, 10, ensemble=3)
    single = eqprop.make_engine(alone, rule, 0.01, "native", threads=1)

    def steps(engine):
        for _ in range(20):
            engine.step(x, y)

    def compare():
        steps(single)
        for net in nets:
            assert all(torch.equal(p, q) for p, q in zip(net.parameters(), alone.parameters()))

    threads = [threading.Thread(target=steps, args=(engine,)) for engine in made]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    compare()
    child = os.fork()
    for engine in made: steps(engine)
    compare()
    if not child: os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("the same")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the same\n"


def test_networks_that_do_not_fit_in_memory_are_refused_before_they_are_made():
    for call in (
        lambda: eqprop.layered(784, 10**9, 10),
        lambda: eqprop.layered(784, 512, 10, ensemble=10**7),
        lambda: eqprop.layered(784, 512, 10, ensemble=10**13),
        lambda: eqprop.Network(
            [eqprop.Input(3), eqprop.Layer("h", 10**8)],
            [eqprop.Dense("input", "h"), eqprop.Dense("h", "h")],
        ),
    ):
        with pytest.raises(
            NotEnoughMemory, match=r"would need [\d.e+]+ [TG]B of memory, but cpu has"
        ):
            call()


def test_the_command_line_says_what_would_be_needed(capsys, tmp_path):
    for words in (
        ["--set", "layers=784,1000000000,10"],
        ["--seeds", "100000000"],
    ):
        assert main(["train", "c-ep-1h", *words, "--out", str(tmp_path / "run")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "would need" in line
        assert " TB of memory, but cpu has " in line
    assert main(["train", "c-ep-1h", "--threads", "100000", "--out", str(tmp_path / "run")]) == 2
    assert "--threads must be 1 to 256, not 100000" in capsys.readouterr().err


@needs_compiler
def test_buffers_that_do_not_fit_are_refused(monkeypatch):
    net, x, y = a_network(), *a_minibatch()
    engine = eqprop.make_engine(net, RULE, 0.1, "native")
    monkeypatch.setattr(memory, "available", lambda device="cpu": 1000)
    with pytest.raises(NotEnoughMemory, match=r"the buffers of 1 network\(s\), 5 samples each"):
        engine.step(x, y)


@pytest.mark.parametrize(
    "failure",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"
        ),
    ],
)
def test_an_allocation_that_fails_in_an_engine_is_one_line_and_undone(failure, monkeypatch):
    net, x, y = a_network(), *a_minibatch()
    engine = eqprop.make_engine(net, RULE, 0.1, "telescoped")
    before = [p.clone() for p in net.parameters()]

    def fails(*_):
        net.synapses[0].weight.zero_()
        raise failure

    monkeypatch.setattr(engine, "healthy", fails)
    with pytest.raises(NotEnoughMemory, match="needs more memory than there is"):
        engine.step(x, y)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def test_available_memory_is_what_this_machine_has(monkeypatch, tmp_path):
    """Oracle: /proc/meminfo, or the physical memory; a container may have less."""
    assert 2**20 < memory.available() < 2**50
    (tmp_path / "meminfo").write_text("MemAvailable: 2048 kB\nSwapFree: 1024 kB\n")
    (tmp_path / "max").write_text("1000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "none")
    assert memory.available() == 3 * 2**20
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "max")
    assert memory.available() == 1000
    assert memory.available("meta") is None
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "none")
    assert memory.available() > 2**20


@needs_compiler
def test_a_count_beyond_32_bits_is_refused():
    engine = eqprop.make_engine(a_network(), RULE, 0.1, "native")
    assert type(engine) is NativeEngine
    with pytest.raises(ValueError, match=r"pixels must be at most \d+, not 2400000000"):
        engine._call("step", 400_000_000, 5, 0)


def test_init_functions_must_return_the_shape_they_are_asked_for():
    with pytest.raises(ValueError, match=r"synapse input→hidden: init returned \[1\]"):
        eqprop.layered(3, 4, 2, init=lambda shape, *_: torch.zeros(1))


def test_kinds_are_all_checked_here():
    fast = {"native", "persistent", "telescoped", "convolutional"}
    assert {"auto", *fast, "reference"} == set(engines.KINDS)
