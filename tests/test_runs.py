"""A run: what its folder holds, and that every number in it is true.

Oracle: C-EP training and its free phase once more, in plain PyTorch and float64; the same run
again; the same member alone; sums done by hand.
"""

import io
import json
import math
import platform
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import eqprop
from eqprop.data import Dataset
from eqprop.engines import native
from eqprop.runs import recipe as recipes
from eqprop.runs.training import Training, Watcher

pytestmark = pytest.mark.slow

# An odd number of samples, so that the last minibatch is short; few free steps, so that some
# samples have not settled; three seeds, and signs of β that differ between them.
RECIPE = {
    "layers": "784,32,10",
    "learning_rates": "0.01,0.005",
    "free_steps": 6,
    "nudged_steps": 4,
    "batch": 10,
    "train_samples": 395,
    "test_samples": 150,
    "epochs": 3,
    "seeds": 3,
}
MEMBERS, EPOCHS, SHOWN, TESTED = 3, 3, 395, 150
TRAIN = ("train", "--engine", "reference")
PARAMETERS = ["synapses.0.weight", "synapses.0.bias", "synapses.1.weight", "synapses.1.bias"]
LISTS = {
    "train_error",
    "train_loss",
    "test_error",
    "test_loss",
    "residual",
    "unsettled",
    "free_steps",
}
TABLES = {"saturated": ["hidden", "output"], "weight_norm": PARAMETERS, "weight_angle": []}


def lines(file: Path) -> list[dict[str, Any]]:
    """The records of a log, without the hashes that chain them."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(len(record.pop("hash")) == 16 for record in records)
    return records


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the last checkpoint, read as its documentation says."""
    body = (folder / "checkpoints" / "last.ckpt").read_bytes().partition(b"\n")[2]
    return torch.load(io.BytesIO(body), weights_only=True)["parameters"]


@pytest.fixture(scope="module")
def run(cli: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert cli(*TRAIN, "c-ep-1h", "--out", out, **RECIPE).code == 0
    return out


@pytest.fixture(scope="module")
def metrics(run: Path) -> list[dict[str, Any]]:
    return lines(run / "metrics.jsonl")


@pytest.fixture(scope="module", params=["reference", "auto"])
def metrics_of_engine(
    request: pytest.FixtureRequest,
    cli: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp(request.param) / "run"
    words = ("train", "--engine", request.param, "c-ep-1h", "--out", out)
    assert cli(*words, **RECIPE).code == 0
    return lines(out / "metrics.jsonl")


# What lies in the folder


def test_folder_holds_what_is_promised_and_nothing_else(run: Path) -> None:
    here = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    (events,) = (name for name in here if name.startswith("tensorboard/events.out.tfevents"))
    assert here == {
        ".lock",
        "recipe.toml",
        "metrics.jsonl",
        "run.json",
        "summary.json",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
        "curves.png",
        events,
    }


def test_recipe_in_the_folder_is_the_one_that_was_run(run: Path) -> None:
    recipe = recipes.load(str(run / "recipe.toml"))
    words = (f"{key}={value}" for key, value in RECIPE.items())
    assert recipe == recipes.load("c-ep-1h", dict(map(recipes.parse_override, words)))
    assert recipe.name == "c-ep-1h"


def test_metrics_have_a_line_an_epoch_and_a_value_a_member(metrics: list[dict[str, Any]]) -> None:
    assert [record["epoch"] for record in metrics] == [1, 2, 3]
    for record in metrics:
        assert set(record) == {"epoch"} | LISTS | set(TABLES)
        for key in LISTS:
            assert len(record[key]) == MEMBERS
            assert all(isinstance(value, (int, float)) for value in record[key])
        for key, names in TABLES.items():
            assert list(record[key]) == names
            assert all(len(values) == MEMBERS for values in record[key].values())


def test_summary_is_the_metrics_summed_up(run: Path, metrics: list[dict[str, Any]]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["recipe"], summary["epochs"], summary["frozen"]) == ("c-ep-1h", EPOCHS, [])
    assert len(summary["members"]) == MEMBERS
    for i, member in enumerate(summary["members"]):
        tests = [record["test_error"][i] for record in metrics]
        assert (member["seed"], member["beta"], member["angle"]) == (i, 0.2, 0.0)
        assert member["learning_rates"] == [0.01, 0.005]
        assert member["frozen"] is False
        assert member["final_test_error"] == tests[-1]
        assert member["final_train_error"] == metrics[-1]["train_error"][i]
        assert member["best_test_error"] == min(tests)
        assert member["best_epoch"] == 1 + tests.index(min(tests))
        assert math.isclose(member["last_ten_test_error"], statistics.mean(tests), rel_tol=1e-12)
    for key, values in (
        ("test_error", metrics[-1]["test_error"]),
        ("train_error", metrics[-1]["train_error"]),
        ("last_ten_test_error", [m["last_ten_test_error"] for m in summary["members"]]),
    ):
        assert math.isclose(summary[key]["mean"], statistics.mean(values), rel_tol=1e-12)
        assert math.isclose(summary[key]["std"], statistics.stdev(values), rel_tol=1e-9)
        assert summary[key]["members"] == MEMBERS


def test_mean_of_the_last_ten_leaves_out_what_was_before(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    small = RECIPE | {"layers": "784,8,10", "train_samples": 60, "test_samples": 30, "epochs": 12}
    assert cli(*TRAIN, "ep-1h", "--out", tmp_path / "run", **small).code == 0
    tests = [record["test_error"] for record in lines(tmp_path / "run" / "metrics.jsonl")]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for i, member in enumerate(summary["members"]):
        curve = [test[i] for test in tests]
        assert math.isclose(member["last_ten_test_error"], statistics.mean(curve[-10:]))
        assert member["best_epoch"] == 1 + curve.index(min(curve))
    assert any(test != tests[-1] for test in tests)


def test_summary_says_where_the_numbers_were_made(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["versions"] == {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "eqprop": eqprop.__version__,
    }
    assert summary["machine"]["device"] == "cpu"
    assert summary["machine"]["threads"] == 1
    assert summary["machine"]["processor"] not in ("", "unknown")
    commit = (summary["commit"] or "").removesuffix("+changes")
    assert summary["commit"] is None or (len(commit) == 40 and int(commit, 16))
    assert 0.01 < summary["wall_seconds"] < 100
    assert summary["engine"] == "ReferenceEngine"


def test_summary_has_the_threads_of_an_engine_with_its_own(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_cores", lambda: 3)
    small = RECIPE | {"train_samples": 20, "test_samples": 20, "epochs": 1}
    words = ("train", "c-ep-1h", "--engine", "native", "--out", tmp_path / "run")
    assert cli(*words, **small).code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["engine"], summary["machine"]["threads"]) == ("NativeEngine", 3)


def test_tensorboard_log_holds_every_number_of_the_metrics(
    run: Path, metrics: list[dict[str, Any]]
) -> None:
    log = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    log.Reload()
    expected = {}
    for record in metrics:
        for key, value in record.items():
            tables = value.items() if isinstance(value, dict) else [("", value)]
            for name, members in tables if key != "epoch" else ():
                for i, number in enumerate(members):
                    tag = "/".join(part for part in (key, name, str(i)) if part)
                    expected.setdefault(tag, []).append((record["epoch"], number))
    assert set(log.Tags()["scalars"]) == set(expected)
    for tag, points in expected.items():
        logged = [(event.step, event.value) for event in log.Scalars(tag)]
        assert [step for step, _ in logged] == [epoch for epoch, _ in points]
        for (_, a), (_, b) in zip(logged, points, strict=True):
            assert math.isclose(a, b, rel_tol=1e-6)  # float32


def test_curves_are_a_picture_with_something_on_it(run: Path) -> None:
    pixels = matplotlib.image.imread(run / "curves.png")
    height, width, _ = pixels.shape
    assert height >= 400
    assert width >= 600
    colours = Counter(map(tuple, (pixels[..., :3] * 255).astype(int).reshape(-1, 3).tolist()))
    assert colours[(31, 119, 180)] > 500  # the first colour of matplotlib: the curves


def test_the_same_recipe_gives_the_same_bytes(
    run: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    assert cli(*TRAIN, "c-ep-1h", "--out", tmp_path / "again", **RECIPE).code == 0
    for name in ("metrics.jsonl", "recipe.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()
    first, second = parameters(run), parameters(tmp_path / "again")
    assert all(torch.equal(first[name], second[name]) for name in PARAMETERS)


def test_another_seed_gives_another_run(run: Path, cli: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "other"
    assert cli(*TRAIN, "c-ep-1h", "--out", out, **RECIPE | {"seed": 3, "epochs": 1}).code == 0
    first, other = lines(run / "metrics.jsonl")[0], lines(out / "metrics.jsonl")[0]
    assert not set(first["test_loss"]) & set(other["test_loss"])


# The numbers


def training(
    data: Dataset, name: str = "c-ep-1h", angles_every: int | None = None, **more: Any
) -> Training:
    words = (f"{key}={value}" for key, value in (RECIPE | more).items())
    recipe = recipes.load(name, dict(map(recipes.parse_override, words)))
    return Training(recipe, data, engine="reference", angles_every=angles_every)


def plan(training: Training, epoch: int) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    training.at.epoch = epoch
    return [
        (index[m], None if signs is None else signs[m])
        for index, signs in training._epoch_plan()
        for m in range(len(index))
    ]


def sigma(v: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-4 * (v - 0.5)))


class Plain:
    """One network of one hidden layer, its free phase and C-EP: the paper's equations alone."""

    def __init__(self, theta: list[torch.Tensor]) -> None:
        self.W0, self.b0, self.W1, self.b1 = (p.double() for p in theta)

    def step(self, x: torch.Tensor, h: torch.Tensor, o: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return sigma(x @ self.W0 + self.b0 + o @ self.W1.T), sigma(h @ self.W1 + self.b1)

    def free(self, x: torch.Tensor, T: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """State after T steps from zero, and how far each sample moved at the last of them."""
        h, o = torch.zeros(len(x), len(self.b0)).double(), torch.zeros(len(x), 10).double()
        for _ in range(T):
            before = h, o
            h, o = self.step(x, h, o)
        moved = torch.cat([h - before[0], o - before[1]], dim=1).abs().amax(1)
        return h, o, moved

    def learn(
        self, x: torch.Tensor, y: torch.Tensor, beta: float, rates: tuple[float, float]
    ) -> torch.Tensor:
        """One minibatch of C-EP; returns the output of the free phase."""
        h, o, _ = self.free(x, RECIPE["free_steps"])
        answer, n = o, len(x)
        for _ in range(RECIPE["nudged_steps"]):
            h_next, o_next = self.step(x, h, o)
            o_next = o_next + beta * (y - o)
            self.W0 = self.W0 + rates[0] / beta * x.T @ (h_next - h) / n
            self.b0 = self.b0 + rates[0] / beta * (h_next - h).mean(0)
            self.W1 = self.W1 + rates[1] / beta * (h_next.T @ o_next - h.T @ o) / n
            self.b1 = self.b1 + rates[1] / beta * (o_next - o).mean(0)
            h, o = h_next, o_next
        return answer


def samples(split: Any, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = split.images[index].double().flatten(-3) / 255
    return x, torch.eye(10).double()[split.labels[index].long()]


@pytest.fixture(scope="module")
def retraced(mnist: Dataset) -> list[list[dict[str, Any]]]:
    """[member][epoch]: what plain PyTorch in float64 counts for the same run."""
    ours = training(mnist)
    initial = {name: p.clone() for name, p in ours.net.named_parameters()}
    every = []
    for i in range(MEMBERS):
        net, records = Plain([initial[name][i] for name in PARAMETERS]), []
        for epoch in range(EPOCHS):
            wrong, loss = 0, 0.0
            for index, sign in plan(ours, epoch):
                x, y = samples(mnist.train, index[i])
                answer = net.learn(x, y, 0.2 * float(sign[i]), (0.01, 0.005))
                wrong += int((answer.argmax(1) != y.argmax(1)).sum())
                loss += 0.5 * float(((answer - y) ** 2).sum())
            x, y = samples(mnist.test, torch.arange(TESTED))
            h, o, moved = net.free(x, RECIPE["free_steps"])
            records.append(
                {
                    "train_wrong": wrong,
                    "train_loss": loss / SHOWN,
                    "test_wrong": int((o.argmax(1) != y.argmax(1)).sum()),
                    "test_loss": 0.5 * float(((o - y) ** 2).sum()) / TESTED,
                    "residual": float(moved.max()),
                    "unsettled": int((moved > 1e-3).sum()),
                    "saturated": [int(((s < 0.01) | (s > 0.99)).sum()) for s in (h, o)],
                    "weight_norm": [
                        math.sqrt(float((p**2).sum())) for p in (net.W0, net.b0, net.W1, net.b1)
                    ],
                }
            )
        every.append(records)
    return every


# float32 against float64 over 120 minibatches: weights agree to some 1e-6, states too, and a
# sample or a neuron on the very edge of a threshold may fall on the other side.


def test_errors_and_losses_are_those_of_plain_pytorch(
    metrics_of_engine: list[dict[str, Any]], retraced: list[list[dict[str, Any]]]
) -> None:
    for i, records in enumerate(retraced):
        for record, expected in zip(metrics_of_engine, records, strict=True):
            assert abs(record["train_error"][i] * SHOWN / 100 - expected["train_wrong"]) < 1.01
            assert abs(record["test_error"][i] * TESTED / 100 - expected["test_wrong"]) < 1.01
            assert math.isclose(record["train_loss"][i], expected["train_loss"], rel_tol=1e-5)
            assert math.isclose(record["test_loss"][i], expected["test_loss"], rel_tol=1e-5)
    learned = [records[-1]["test_wrong"] < records[0]["test_wrong"] - 15 for records in retraced]
    assert all(learned)  # so the comparison is not one of networks that do nothing


def test_health_is_that_of_plain_pytorch(
    metrics_of_engine: list[dict[str, Any]], retraced: list[list[dict[str, Any]]]
) -> None:
    for i, records in enumerate(retraced):
        for record, expected in zip(metrics_of_engine, records, strict=True):
            assert record["free_steps"][i] == RECIPE["free_steps"]
            assert math.isclose(record["residual"][i], expected["residual"], rel_tol=1e-3)
            assert abs(record["unsettled"][i] * TESTED - expected["unsettled"]) < 1.01
            for name, size, count in zip(
                ("hidden", "output"), (32, 10), expected["saturated"], strict=True
            ):
                assert abs(record["saturated"][name][i] * TESTED * size - count) < 2.01
            for name, norm in zip(PARAMETERS, expected["weight_norm"], strict=True):
                assert math.isclose(record["weight_norm"][name][i], norm, rel_tol=1e-5)
    last = [records[-1] for records in retraced]
    assert any(0 < r["unsettled"] < TESTED for r in last)  # the quantities do occur
    assert any(r["saturated"][0] > 10 for r in last)


def test_test_error_is_that_of_the_saved_weights(
    run: Path, metrics: list[dict[str, Any]], mnist: Dataset
) -> None:
    theta = parameters(run)
    x, y = samples(mnist.test, torch.arange(TESTED))
    for i in range(MEMBERS):
        net = Plain([theta[name][i] for name in PARAMETERS])
        wrong = int((net.free(x, RECIPE["free_steps"])[1].argmax(1) != y.argmax(1)).sum())
        assert abs(metrics[-1]["test_error"][i] - 100 * wrong / TESTED) < 1e-9


def test_tolerance_ends_the_free_phase_early_and_the_metrics_say_so(
    run: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    longer = RECIPE | {"free_steps": 200, "tolerance": 1e-3, "epochs": 1}
    assert cli(*TRAIN, "c-ep-1h", "--out", tmp_path / "run", **longer).code == 0
    (record,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert all(5 < steps < 100 for steps in record["free_steps"])
    assert record["unsettled"] == [0.0] * MEMBERS
    assert all(0 < residual <= 1e-3 for residual in record["residual"])


# Ensembles


def test_every_epoch_shows_each_member_every_sample_once_in_a_new_order(mnist: Dataset) -> None:
    ours = training(mnist)
    orders = []
    for epoch in range(2):
        minibatches = plan(ours, epoch)
        assert [index.shape for index, _ in minibatches] == [(3, 10)] * 39 + [(3, 5)]
        order = torch.cat([index for index, _ in minibatches], dim=1)
        assert torch.equal(order.sort(1).values, torch.arange(SHOWN).expand(3, SHOWN))
        orders += list(order)
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_signs_of_beta_are_fair_and_new_in_every_epoch(mnist: Dataset) -> None:
    ours = training(mnist, train_samples=10_000)
    signs = torch.stack([sign for epoch in range(2) for _, sign in plan(ours, epoch)])
    assert signs.abs().eq(1).all()
    assert signs.mean(0).abs().max() < 0.09  # 4 standard deviations of 2000 fair coins
    columns = [*signs[:1000].T, *signs[1000:].T]
    assert len({tuple(column.tolist()) for column in columns}) == 6


def test_order_and_signs_of_a_member_are_the_same_in_any_company(mnist: Dataset) -> None:
    together = training(mnist, "c-vf-1h", angle="0,90")
    alone = training(mnist, "c-vf-1h", seed=2, seeds=1, beta=0.7)
    assert [m.seed for m in together.members] == [0, 1, 2, 0, 1, 2]
    for epoch in (0, 4):
        for (index, sign), (own_index, own_sign) in zip(
            plan(together, epoch), plan(alone, epoch), strict=True
        ):
            for place in (2, 5):
                assert torch.equal(index[place], own_index[0])
                assert sign[place] == own_sign[0]


def test_member_of_an_ensemble_learns_what_it_learns_alone(
    run: Path, metrics: list[dict[str, Any]], cli: Callable[..., Any], tmp_path: Path
) -> None:
    """A batched product rounds differently than a single one: float32, 120 minibatches."""
    out = tmp_path / "alone"
    one = {key: value for key, value in RECIPE.items() if key != "seeds"}
    assert cli(*TRAIN, "c-ep-1h", "--seeds", 1, "--out", out, **one, seed=1).code == 0
    theta, own = parameters(run), parameters(out)
    for name in PARAMETERS:
        torch.testing.assert_close(theta[name][1], own[name][0], rtol=0, atol=2e-5)
    for record, alone in zip(metrics, lines(out / "metrics.jsonl"), strict=True):
        assert abs(record["train_error"][1] - alone["train_error"][0]) < 101 / SHOWN
        assert abs(record["test_error"][1] - alone["test_error"][0]) < 101 / TESTED
        assert math.isclose(record["test_loss"][1], alone["test_loss"][0], rel_tol=1e-5)
        assert math.isclose(record["train_loss"][1], alone["train_loss"][0], rel_tol=1e-5)


def test_sweep_over_angles_makes_members_of_those_angles(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    """With 320 weights 90° has a standard deviation of 4.3°; small rates turn them little."""
    out = tmp_path / "angles"
    slow = RECIPE | {"learning_rates": "0.001,0.001", "epochs": 1, "seeds": 2}
    assert cli(*TRAIN, "c-vf-1h", "--out", out, **slow, angle="0,90,180").code == 0
    (record,) = lines(out / "metrics.jsonl")
    (measured,) = record["weight_angle"].values()
    for place, (angle, margin) in enumerate(
        [(0, 5), (0, 5), (90, 15), (90, 15), (180, 5), (180, 5)]
    ):
        assert abs(measured[place] - angle) < margin
    theta = parameters(out)
    forward, backward = theta["synapses.1.weight"], theta["synapses.1.backward_weight"]
    for i in range(6):
        a, b = forward[i].double(), backward[i].double().T
        kappa = math.degrees(math.acos(float((a * b).sum() / (a.norm() * b.norm()))))
        assert abs(kappa - measured[i]) < 0.05  # float32 near an angle of 0
    summary = json.loads((out / "summary.json").read_text())
    assert [m["angle"] for m in summary["members"]] == [0, 0, 90, 90, 180, 180]
    assert [m["seed"] for m in summary["members"]] == [0, 1] * 3


def test_frozen_parameters_stay_where_they_were(
    cli: Callable[..., Any], mnist: Dataset, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    one_epoch = RECIPE | {"epochs": 1}
    assert cli(*TRAIN, "c-vf-1h", "--out", out, **one_epoch).code == 0
    initial = training(mnist, "c-vf-1h").net.state_dict()
    for name, p in parameters(out).items():
        assert torch.equal(p, initial[name]) is (name == "synapses.0.bias")


# The angle to BPTT on the way


class Recorder(Watcher):
    """A watcher that keeps the weights before each minibatch, and the angles."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.theta, self.records = [self._now()], []

    def _now(self) -> dict[str, torch.Tensor]:
        return {n: p.clone() for n, p in self._training.net.state_dict().items()}

    def minibatch(self, epoch: int, done: int, of: int, train_error: float) -> None:
        self.theta.append(self._now())

    def angles(self, record: dict[str, Any]) -> None:
        self.records.append(record)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("c-vf-1h", {"angle": "0,135", "seeds": 1}),
        ("c-ep-1h", {"rescale": 0.1}),
        ("ep-1h", {}),
    ],
)
def test_recorded_angle_is_that_of_the_total_update_to_bptt(
    name: str, more: dict[str, Any], mnist: Dataset
) -> None:
    ours = training(mnist, name, angles_every=15, epochs=1, **more)
    recipe, members = ours.recipe, ours.members
    watcher = Recorder(ours)
    ours.run(watcher)
    records = watcher.records
    assert [record["minibatch"] for record in records] == [0, 15, 30]
    minibatches = plan(training(mnist, name, **more), 0)
    bptt = eqprop.BPTT(free_steps=6, backward_steps=4)
    for record in records:
        for i, member in enumerate(members):
            net = recipe.network.build([member])
            at = watcher.theta[record["minibatch"]]
            net.load_state_dict({n: p[i : i + 1] for n, p in at.items()})
            x, y = mnist.train.shaped((784,)).batch(minibatches[record["minibatch"]][0][i : i + 1])
            rule = recipe.learning_rule([member])
            moving = [n for n in at if n not in recipe.update.frozen]
            rates = {n: member.learning_rates[int(n.split(".")[1])] for n in moving}
            update = eqprop.total_update(net, rule, x, y, learning_rates=rates)
            gradient = eqprop.total_update(net, bptt, x, y)
            whole = float(eqprop.angle(update, gradient))
            assert abs(record["angle"][i] - whole) < 0.01
            for n in at:
                own = float(eqprop.angle(update[n], gradient[n]))
                assert abs(record["synapses"][n][i] - own) < 0.01
    spread = [angle for record in records for angle in record["angle"]]
    assert max(spread) - min(spread) > 0.5


def test_angles_every_on_the_command_line_writes_and_logs_them(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    outcome = cli(*TRAIN, "c-ep-1h", "--angles-every", 30, "--out", out, **RECIPE | {"epochs": 2})
    assert outcome.code == 0
    records = lines(out / "angles.jsonl")
    assert [(r["epoch"], r["minibatch"]) for r in records] == [(1, 0), (1, 30), (2, 60)]
    log = EventAccumulator(str(out / "tensorboard"))
    log.Reload()
    logged = [(event.step, event.value) for event in log.Scalars("angle to BPTT/2")]
    for (step, value), record in zip(logged, records, strict=True):
        assert step == record["minibatch"]
        assert math.isclose(value, record["angle"][2], rel_tol=1e-6)


def test_recording_angles_does_not_change_the_run(
    run: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert cli(*TRAIN, "c-ep-1h", "--angles-every", 25, "--out", out, **RECIPE).code == 0
    assert (out / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
