"""Time one training minibatch of the CIFAR-10 network in the published code of others.

    git clone https://github.com/rain-neuromorphics/energy-based-learning RAIN
    git -C RAIN checkout 6b253fd8a5d267535f58ab79992256ef10031ceb
    git clone https://github.com/Laborieux-Axel/Equilibrium-Propagation LABORIEUX
    git -C LABORIEUX checkout 93660ed6c5b0ec07978b674a69c169ce32e8cd5f

    python benchmarks/convolution_peers.py rain RAIN --tf32
    python benchmarks/convolution_peers.py rain-statistics RAIN --tf32
    python benchmarks/convolution_peers.py laborieux LABORIEUX --tf32

Each peer runs its own training loop with its published settings, on random images that are already
on the device. The time between two requests for a minibatch is the time of one minibatch. rain's
own script also measures energies, norms and gradients at each minibatch: `rain-statistics`.

Without --tf32 all is float32. PyTorch's default, and so the peers', is TF32 in convolutions alone.
The peers do not set --cudnn-benchmark, which benchmarks/convolution.py does.

Adds an entry to results/convolution-peers.json. It replaces one of the same peer, settings and
machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from eqprop.exits import OK, USER_ERROR
from eqprop.runs import UserError, machine

RESULTS = Path(__file__).parent.parent / "results"
IMAGES, CLASSES = 50_000, 10  # of CIFAR-10
WARM_UP = 2  # minibatches


class Enough(Exception):
    """All minibatches are done."""


class Loader:
    """Serves the same random minibatch again and again, and notes when it is asked for.

    Args:
        batch: number of images.
        rounds: number of minibatches to time, after the warm-up. Then it raises `Enough`.
        device: "cpu" or "cuda", of the images and labels.
    """

    def __init__(self, batch: int, rounds: int, device: str) -> None:
        source = torch.Generator().manual_seed(0)
        self.x = torch.rand(batch, 3, 32, 32, generator=source).to(device)
        self.y = torch.randint(CLASSES, (batch,), generator=source).to(device)
        self.batch_size, self.rounds = batch, rounds
        self.dataset = range(IMAGES)  # peers ask for its length
        self.requests: list[float] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            if self.x.is_cuda:
                torch.cuda.synchronize()
            self.requests.append(time.perf_counter())
            if len(self.requests) > WARM_UP + self.rounds:
                raise Enough
            yield self.x, self.y

    def milliseconds(self) -> list[float]:
        """Return the time of each minibatch after the warm-up."""
        return [1e3 * (b - a) for a, b in pairwise(self.requests)][WARM_UP:]


@dataclass(frozen=True)
class Training:
    """A peer's training, ready to start.

    Args:
        run: trains for one epoch with the minibatches of the loader.
        parameters: what it trains.
    """

    run: Callable[[], object]
    parameters: list[Tensor]


def stand_in(name: str, **names: object) -> None:
    """Replace a package that a peer imports and the timed code does not use."""
    module = ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module


def rain(loader: Loader, free: int, nudged: int, *, measures: bool) -> Training:
    """Centred EP on a convolutional Hopfield network, as papers/ebl-algorithms/sota-dchn.py."""
    stand_in("torch.utils.tensorboard", SummaryWriter=None)
    from model.function.cost import SquaredError
    from model.function.network import Network
    from model.hopfield.minimizer import FixedPointMinimizer
    from model.hopfield.network import ConvHopfieldEnergy32
    from training.epoch import Evaluator, Trainer
    from training.monitor import Monitor, Optimizer
    from training.sgd import AugmentedFunction, EquilibriumProp

    energy = ConvHopfieldEnergy32(3, CLASSES, weight_gains=[0.4, 0.7, 0.6, 0.3, 0.4])
    energy.set_device(loader.x.device.type)
    cost, network = SquaredError(energy.layers()[-1]), Network(energy)
    augmented = AugmentedFunction(energy, cost)
    nudge = FixedPointMinimizer(augmented, network.free_layers(), nudged)
    settle = FixedPointMinimizer(energy, network.free_layers(), free)
    parameters, layers = energy.params(), energy.layers()
    rule = EquilibriumProp(parameters, layers, augmented, cost, nudge, "centered", nudging=0.1)
    optimiser = Optimizer(energy, cost, [0.03] * len(parameters), momentum=0.9, weight_decay=2.5e-4)
    trainer = Trainer(network, cost, parameters, loader, rule, optimiser, settle)
    if measures:
        evaluator = Evaluator(network, cost, loader, settle)  # not run
        Monitor(energy, cost, trainer, None, evaluator, use_tensorboard=False)
    return Training(trainer.run, [p.state for p in parameters])


def laborieux(loader: Loader, free: int, nudged: int) -> Training:
    """Centred EP with squared error: "EP with symmetric gradient estimate" of its README."""
    stand_in("matplotlib", use=lambda backend: None)
    stand_in("matplotlib.pyplot")
    stand_in("torchvision")
    from model_utils import P_CNN, make_pools, my_hard_sig, train

    device = loader.x.device
    model = P_CNN(
        in_size=32,
        channels=[3, 128, 256, 512, 512],
        kernels=[3] * 4,
        strides=[1] * 4,
        fc=[CLASSES],
        pools=make_pools("mmmm"),
        paddings=[1, 1, 1, 0],
        activation=my_hard_sig,
    ).to(device)
    rates = (0.25, 0.15, 0.1, 0.08, 0.05)
    groups = [
        {"params": synapse.parameters(), "lr": rate, "weight_decay": 3e-4}
        for synapse, rate in zip(model.synapses, rates, strict=True)
    ]
    optimiser = torch.optim.SGD(groups, momentum=0.9)
    run = partial(
        train,
        model,
        optimiser,
        loader,
        test_loader=None,  # the loader stops before it is used
        T1=free,
        T2=nudged,
        betas=(0.0, 0.5),
        device=device,
        epochs=1,
        criterion=torch.nn.MSELoss(reduction="none"),
        thirdphase=True,  # with −β
    )
    return Training(run, list(model.parameters()))


@dataclass(frozen=True)
class Peer:
    """Published code for convolutional EP.

    Args:
        url: where to clone it from.
        file: a file of each checkout.
        iterations: number of free and of nudged iterations, the latter for each sign of β.
        training: makes its training from the loader and the two numbers of iterations.
    """

    url: str
    file: str
    iterations: tuple[int, int]
    training: Callable[[Loader, int, int], Training]


RAIN = "https://github.com/rain-neuromorphics/energy-based-learning"
LABORIEUX = "https://github.com/Laborieux-Axel/Equilibrium-Propagation"
PEERS = {
    "rain": Peer(RAIN, "training/epoch.py", (60, 20), partial(rain, measures=False)),
    "rain-statistics": Peer(RAIN, "training/epoch.py", (60, 20), partial(rain, measures=True)),
    "laborieux": Peer(LABORIEUX, "model_utils.py", (250, 30), laborieux),
}


def commit(checkout: Path) -> str:
    """Return the commit of a checkout, with "+changes" if its files differ from it."""
    if not (checkout / ".git").exists():  # git would answer for a repository around it
        raise UserError(f"{checkout} has no .git: name its commit with --commit")
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*"]
    return subprocess.run(
        [*command, "--dirty=+changes"], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()


def measure(peer: Peer, loader: Loader, iterations: tuple[int, int]) -> list[float]:
    """Return the milliseconds of each minibatch. Refuse what did not train."""
    torch.manual_seed(0)
    training = peer.training(loader, *iterations)
    before = [p.detach().clone() for p in training.parameters]
    with suppress(Enough):
        training.run()
    for old, new in zip(before, training.parameters, strict=True):
        if not new.isfinite().all() or torch.equal(old, new):
            raise RuntimeError("a parameter did not move or is not finite: this was no training")
    return loader.milliseconds()


def add(entry: dict[str, Any], path: Path) -> None:
    """Write an entry into the record, in the place of an older one of the same kind."""

    def kind(other: dict[str, Any]) -> tuple[object, ...]:
        return other["peer"], other["settings"], other["machine"]

    old = json.loads(path.read_text("utf-8"))["results"] if path.exists() else []
    record = {
        "what": "one training minibatch of random images in each peer's own loop, wall clock",
        "results": [*(other for other in old if kind(other) != kind(entry)), entry],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("checkout", type=Path, metavar="PATH")
    parser.add_argument("--commit", help="of a checkout without .git")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=positive, default=128, help="laborieux: 2 or more")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument(
        "--iterations",
        type=positive,
        nargs=2,
        metavar=("FREE", "NUDGED"),
        help="default: those of the peer",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def entry_of(options: argparse.Namespace) -> dict[str, Any]:
    """Time the peer and return the entry of the record."""
    peer, checkout, device = PEERS[options.peer], options.checkout, options.device
    if not (checkout / peer.file).exists():
        raise UserError(f"{checkout} has no {peer.file}: git clone {peer.url} {checkout}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda finds no GPU: take --device cpu, for a trial")
    peer_commit = options.commit or commit(checkout)
    sys.dont_write_bytecode = True  # leave the checkout as it is
    sys.path.insert(0, str(checkout.resolve()))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    free, nudged = iterations = options.iterations or peer.iterations
    spent = measure(peer, Loader(options.batch, options.rounds, device), iterations)
    median = statistics.median(spent)
    return {
        "peer": options.peer,
        "peer_commit": peer_commit,
        "settings": {
            "batch": options.batch,
            "free_iterations": free,
            "nudged_iterations": nudged,
            "tf32": options.tf32,
            "cudnn_benchmark": options.cudnn_benchmark,
        },
        "rounds": options.rounds,
        "milliseconds_per_minibatch": {"median": median, "min": min(spent), "max": max(spent)},
        "minibatches_per_epoch": (epoch := math.ceil(IMAGES / options.batch)),
        "seconds_per_epoch": median * epoch / 1e3,
        **machine.describe(device),
    }


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    try:
        entry = entry_of(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    add(entry, options.out / "convolution-peers.json")
    spent = entry["milliseconds_per_minibatch"]
    described = entry["machine"]
    print(f"{options.peer} at {entry['peer_commit']}, {entry['settings']}")
    print(
        f"{spent['median']:.1f} ms per minibatch ({spent['min']:.1f} to {spent['max']:.1f}), "
        f"{entry['seconds_per_epoch']:.1f} s per epoch of {entry['minibatches_per_epoch']}; "
        f"{described.get('gpu', described['processor'])}"
    )
    return OK


if __name__ == "__main__":
    sys.exit(main())
