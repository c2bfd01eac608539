"""Oracle: autograd, and the energy's formula written out here. "Four algorithms, one gradient"."""

import pytest
import torch

from eqprop.papers.continual_ep import algorithms
from eqprop.peak import Peak
from eqprop.report.blocks import Matrix, Table
from eqprop.report.item import Order
from eqprop.report.results import Results
from eqprop.rules import BPTT, EP, RBP, ContinualEP

pytestmark = pytest.mark.slow

(ITEM,) = algorithms.ITEMS
PHASES = {"beta": 0.1, "free_steps": 40, "nudged_steps": 40}
SMALL = algorithms.Setting("small", (9, 6, 4), PHASES, PHASES, (0.01, 0.02), exact=False)


@pytest.fixture
def sample():
    source = torch.Generator().manual_seed(1)
    x = torch.rand(5, 9, generator=source, dtype=torch.float64)
    return x, torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 0]]


def forward(theta, x, h, o):
    W0, b0, W1, b1 = theta
    sigma = lambda v: torch.sigmoid(4 * (v - 0.5))  # noqa: E731
    return sigma(x @ W0 + b0 + o @ W1.T), sigma(h @ W1 + b1)


def test_bptt_is_autograd_and_ep_its_formula(sample):
    x, y = sample
    net = SMALL.network()
    names = [f"synapses.{i}.{field}" for i in (0, 1) for field in ("weight", "bias")]
    theta = [net.get_parameter(name).detach().clone().requires_grad_() for name in names]
    h, o = torch.zeros(5, 6).double(), torch.zeros(5, 4).double()
    for _ in range(40):
        h, o = forward(theta, x, h, o)
    loss = 0.5 * ((o - y) ** 2).sum(-1).mean()
    exact = torch.autograd.grad(loss, theta)
    with torch.no_grad():
        hb, ob = h, o
        for _ in range(40):
            new_h, new_o = forward(theta, x, hb, ob)
            hb, ob = new_h, new_o + 0.1 * (y - ob)
    contrast = (
        x.T @ (hb - h),
        (hb - h).sum(0),
        hb.T @ ob - h.T @ o,
        (ob - o).sum(0),
    )
    found = SMALL.gradients(x, y)
    for name, gradient, difference in zip(names, exact, contrast, strict=True):
        torch.testing.assert_close(found["BPTT"][name], gradient, rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(found["RBP"][name], gradient, rtol=1e-6, atol=1e-12)
        expected = -difference.detach() / (0.1 * 5)
        torch.testing.assert_close(found["EP"][name], expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found["C-EP, η → 0"][name], expected, rtol=1e-6, atol=1e-10)
        assert not torch.allclose(found["C-EP, η > 0"][name], expected, rtol=1e-3)


def test_peak_counts_what_lives_at_once_and_neither_views_nor_what_was_there():
    outside = torch.zeros(10_000, dtype=torch.float64)
    with Peak() as peak:
        first = torch.zeros(1000, dtype=torch.float64)
        assert peak.bytes == 8000
        first.add_(1).view(10, 100).t()
        outside.mul_(2)
        outside[:5].reshape(5, 1)
        assert peak.bytes == 8000
        del first
        second = torch.zeros(500, dtype=torch.float64)
        assert peak.bytes == 8000  # 4000 now
        third = second + 1
        assert peak.bytes == 8000
        fourth = third * second
        assert peak.bytes == 12000
    assert len(fourth) == 500


def peak_of(rule, sample):
    with Peak() as peak:
        list(rule.gradients(SMALL.network(), *sample))
    return peak.bytes


def test_what_is_measured_grows_with_K_as_counted(sample):
    """Carried states are the only part of the peak that can depend on K."""
    state = 8 * 5 * (6 + 4)
    for kind, more in ((BPTT, 10), (RBP, 0)):
        few, many = (peak_of(kind(free_steps=40, backward_steps=K), sample) for K in (5, 15))
        assert many - few == more * state
    for kind in (EP, ContinualEP):
        few, many = (
            peak_of(kind(beta=0.1, free_steps=40, nudged_steps=K), sample) for K in (5, 15)
        )
        carried = 0 if kind is EP else 10 * 8 * sum(p.numel() for p in SMALL.network().parameters())
        assert many - few == carried  # the list above keeps the K gradients of C-EP
    for name, carried in algorithms.CARRIED.items():
        assert carried(15)[0] - carried(5)[0] == (10 if name == "BPTT" else 0)


def test_the_item_in_quick(tmp_path):
    results = Results(tmp_path)
    assert all(row.passed is None for row in ITEM.rows(results))
    ITEM.run(Order(results, quick=True, say=lambda line: None))
    mathematics = [row for row in ITEM.rows(results) if "time of" not in row.name]
    assert len(mathematics) == 10
    assert all(row.passed for row in mathematics)
    blocks = ITEM.blocks(results)
    matrices = [block for block in blocks if isinstance(block, Matrix)]
    assert len(matrices) == 4
    for matrix in matrices:
        values = torch.tensor(matrix.values, dtype=torch.float64)
        torch.testing.assert_close(values, values.T)
        torch.testing.assert_close(values.diag(), torch.ones(5, dtype=torch.float64))
    discrete, real = matrices[0].values[0][2], matrices[1].values[0][2]
    assert discrete < 0.98 < 0.999 < real  # BPTT and EP: only in real time does the theorem hold
    tables = [block for block in blocks if isinstance(block, Table)]
    assert [row[0] for row in tables[0].rows] == ["BPTT", "RBP", "EP", "C-EP"]


class Doubled(EP):
    """A dropped ½ on the last synapses."""

    def applied(self, trial):
        for gradients in super().applied(trial):
            yield {
                name: g * (2 if name == "synapses.1.weight" else 1) for name, g in gradients.items()
            }


@pytest.mark.parametrize("broken", [False, True])
def test_a_broken_rule_fails_the_rows_about_it(broken, tmp_path, monkeypatch):
    phases = {"beta": 0.01, "free_steps": 200, "nudged_steps": 40}
    small = algorithms.Setting("small", (784, 16, 10), phases, phases, 1.5e-5, exact=True)
    monkeypatch.setattr(algorithms, "_settings", lambda quick: (small,))
    if broken:
        monkeypatch.setattr(algorithms, "EP", Doubled)
    results = Results(tmp_path)
    ITEM.run(Order(results, say=lambda line: None))
    rbp, cep, ep = ITEM.rows(results)
    assert rbp.passed
    assert (cep.passed, ep.passed) == (not broken, not broken)
