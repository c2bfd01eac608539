"""Oracle: identity and theorem. The measures have known values on simple vectors; `gddcheck`
passes where Theorem 1 holds and fails on rules and models that break it.
"""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch

import eqprop

T, K = 200, 10


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


# The measures


@pytest.mark.parametrize(
    ("a", "b", "degrees"),
    [
        (vector(1, 2, -3), vector(1, 2, -3), 0),
        (vector(1, 2, -3), vector(2, 4, -6), 0),
        (vector(1, 2, -3), vector(-1, -2, 3), 180),
        (vector(1, 0), vector(0, 5), 90),
        (vector(1, 0), vector(3, 3), 45),
        (vector(1, 0), vector(-1, math.sqrt(3)), 120),
        (vector(0, 0), vector(0, 0), 0),
        (vector(0, 0), vector(1, 2), 90),
        (vector(1, 2), vector(0, 0), 90),
    ],
)
def test_angle_in_degrees(a, b, degrees):
    # arccos near ±1 knows half the digits: 1e-16 in the cosine is 1e-8 radians, 1e-6 degrees
    assert float(eqprop.angle(a, b)) == pytest.approx(degrees, abs=5e-6)


def test_angle_of_sets_of_tensors_is_that_of_all_their_entries_in_any_order():
    a = {"weight": vector(1, 0).reshape(2, 1), "bias": vector(1)}
    b = {"bias": vector(1), "weight": vector(0, 0).reshape(2, 1)}
    assert float(eqprop.angle(a, b)) == pytest.approx(45)


def test_measures_are_taken_for_each_member_of_an_ensemble():
    a = torch.stack([vector(1, 0), vector(1, 0), vector(0, 0)])
    b = torch.stack([vector(2, 0), vector(0, 2), vector(0, 0)])
    ensemble = (3,)
    assert eqprop.angle(a, b, ensemble).tolist() == pytest.approx([0, 90, 0])
    assert eqprop.relative_error(a, b, ensemble).tolist() == pytest.approx(
        [0.5, math.sqrt(5) / 2, 0]
    )
    assert eqprop.sign_agreement(a, b, ensemble).tolist() == [1, 0, 1]
    assert eqprop.angle({"p": a}, {"p": b}, ensemble).tolist() == pytest.approx([0, 90, 0])


@pytest.mark.parametrize(
    ("a", "b", "share"),
    [
        (vector(1, -2, 3, -4), vector(5, -6, 7, -8), 1),
        (vector(1, -2, 3, -4), vector(-1, 2, -3, 4), 0),
        (vector(1, -2, 3, 4), vector(5, -6, 7, -8), 0.75),
        (vector(0, 2), vector(1, 2), 0.5),  # no sign is not the right sign
        (vector(-1, 2), vector(0, 2), 1),  # a zero of b has no sign to agree with
        (vector(-1, 2), vector(1e-15, 2), 1),  # nor has a number at rounding
        (vector(-1, 2), vector(1e-9, 2), 0.5),  # a small one has
        (vector(1, 2), vector(0, 0), 1),
    ],
)
def test_sign_agreement_is_the_share_of_entries_that_have_a_sign(a, b, share):
    assert float(eqprop.sign_agreement(a, b)) == share


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        (vector(1, 2), vector(1, 2), 0),
        (vector(2, 4), vector(1, 2), 1),
        (vector(-1, -2), vector(1, 2), 2),
        (vector(0, 0), vector(3, 4), 1),
        (vector(3, 4), vector(3, 3), 1 / math.sqrt(18)),
        (vector(0, 0), vector(0, 0), 0),
        (vector(1, 0), vector(0, 0), math.inf),
    ],
)
def test_relative_error_is_measured_against_the_second_argument(a, b, error):
    assert float(eqprop.relative_error(a, b)) == pytest.approx(error)


# Models and rules


def real_time(**changes):
    settings = {"time": eqprop.RealTime(dt=0.5), "activation": "tanh", "seed": 1, **changes}
    return eqprop.layered(3, 6, 5, 2, init="fan_in", dtype=torch.float64, **settings)


def batch():
    source = torch.Generator().manual_seed(9)
    x = 2 * torch.rand(3, 3, generator=source, dtype=torch.float64) - 1
    return x, torch.rand(3, 2, generator=source, dtype=torch.float64)


def phi(x, s, theta):
    hidden, output = s
    pull = 0.1 * (hidden**2).sum(-1) + 0.05 * (output**2).sum(-1)
    pair = (torch.sin(hidden @ theta["weight"]) * output).sum(-1)
    return pull + pair + (torch.tanh(x @ theta["drive"]) * hidden).sum(-1)


def primitive():
    source = torch.Generator().manual_seed(5)
    return eqprop.Primitive(
        phi,
        parameters={
            "weight": 0.25 * torch.randn(4, 2, generator=source, dtype=torch.float64),
            "drive": torch.randn(3, 4, generator=source, dtype=torch.float64),
        },
        layers={"hidden": 4, "output": 2},
    )


def continual_ep(beta=1e-3, **changes):
    return eqprop.ContinualEP(**{"beta": beta, "free_steps": T, "nudged_steps": K, **changes})


def continual_vf(beta=1e-3):
    return eqprop.ContinualVF(beta=beta, free_steps=T, nudged_steps=K)


RULES = {
    "EP": eqprop.EP(beta=0.1, free_steps=T, nudged_steps=K),
    "ContinualEP": continual_ep(0.1),
    "VF": eqprop.VF(beta=0.1, free_steps=T, nudged_steps=K),
    "ContinualVF": continual_vf(0.1),
    "BPTT": eqprop.BPTT(free_steps=T, backward_steps=K),
    "RBP": eqprop.RBP(free_steps=T, backward_steps=K),
}


# time_resolved


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("make", [real_time, primitive])
def test_the_totals_of_a_process_are_the_sums_of_what_the_rule_applies(make, rule):
    model, (x, y) = make(), batch()
    process = eqprop.time_resolved(model, rule, x, y)
    applied = list(rule.gradients(model, x, y))
    assert len(applied) == (K if "Continual" in type(rule).__name__ else 1)
    for name, value in process.total().items():
        assert process.synapses[name].shape == (K, *dict(model.named_parameters())[name].shape)
        # EP forms its update from two states, the process sums K differences: eps/β apart
        torch.testing.assert_close(
            value, sum(gradients[name] for gradients in applied), rtol=0, atol=1e-13
        )


@pytest.mark.slow
@pytest.mark.parametrize("rates", [None, 0.1])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_time_resolved_leaves_the_model_as_it_is(rule, rates):
    model, (x, y) = real_time(), batch()
    before = {name: p.clone() for name, p in model.named_parameters()}
    eqprop.time_resolved(model, rule, x, y, learning_rates=rates)
    eqprop.gddcheck(model, rule, x, y, learning_rates=rates)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_learning_rates_move_theta_along_as_an_engine_does():
    model, (x, y) = real_time(), batch()
    rates, rule = (0.3, 0.2, 0.1), continual_ep(0.2)
    process = eqprop.time_resolved(model, rule, x, y, learning_rates=rates)
    before = {name: p.clone() for name, p in model.named_parameters()}
    eqprop.make_engine(model, rule, learning_rates=rates).step(x, y)
    for name, parameter in model.named_parameters():
        eta = rates[int(name.split(".")[1])]
        expected = before[name] - eta * process.total()[name]
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-13)
        assert (parameter - before[name]).norm() > 1e-4, name


RESCALED = {
    "ContinualEP": eqprop.ContinualEP(beta=0.2, free_steps=T, nudged_steps=K, rescale=0.25),
    "ContinualVF": eqprop.ContinualVF(beta=0.2, free_steps=T, nudged_steps=K, rescale=0.25),
}


@pytest.mark.parametrize("rule", RESCALED.values(), ids=RESCALED)
def test_a_rescaled_rule_moves_theta_by_its_share_of_the_learning_rates(rule):
    # Alg. debug-cep, written out: θ ← θ − rescale·η·Δ(t) on a copy, and the Δ(t) summed
    model, (x, y) = real_time(), batch()
    eta, inside = 0.4, copy.deepcopy(model)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for gradients in rule.gradients(inside, x, y):
        for name, parameter in inside.named_parameters():
            parameter.sub_(0.25 * eta * gradients[name])
            expected[name] += gradients[name]
    total = eqprop.total_update(model, rule, x, y, learning_rates=eta)
    process = eqprop.time_resolved(model, rule, x, y, learning_rates=eta)
    at_eta = eqprop.total_update(model, replace(rule, rescale=None), x, y, learning_rates=eta)
    at_zero = eqprop.total_update(model, rule, x, y)
    for name, value in expected.items():
        torch.testing.assert_close(total[name], value, rtol=0, atol=1e-14)
        torch.testing.assert_close(process.total()[name], value, rtol=0, atol=1e-14)
        for other in (at_eta, at_zero):
            assert (other[name] - value).norm() > 1e-3 * value.norm(), name


@pytest.mark.parametrize("rule", RESCALED.values(), ids=RESCALED)
def test_the_total_of_a_rescaled_rule_is_what_an_engine_applies(rule):
    model, (x, y) = real_time(), batch()
    before = {name: p.clone() for name, p in model.named_parameters()}
    total = eqprop.total_update(model, rule, x, y, learning_rates=0.4)
    eqprop.make_engine(model, rule, learning_rates=0.4).step(x, y)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, before[name] - 0.4 * total[name], rtol=0, atol=1e-13)


@pytest.mark.parametrize("share", [0.25, torch.tensor([0.25, 0.5], dtype=torch.float64)])
def test_rescaling_multiplies_the_learning_rates_of_each_member(share):
    net, (x, y) = real_time(ensemble=2), batch()
    rates = share / 0.25  # what a share of 0.25 makes of it
    rescaled = eqprop.total_update(net, RESCALED["ContinualEP"], x, y, learning_rates=rates)
    plain = eqprop.total_update(net, continual_ep(0.2), x, y, learning_rates=share)
    for name, value in plain.items():
        assert torch.equal(rescaled[name], value), name


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_theta_moves_during_the_phase_under_continual_rules_alone(rule):
    model, (x, y) = real_time(), batch()
    still = eqprop.total_update(model, rule, x, y)
    given = eqprop.total_update(model, rule, x, y, learning_rates=0.5)
    report = eqprop.gddcheck(model, rule, x, y, learning_rates=0.5)
    moved = any(not torch.equal(given[name], still[name]) for name in still)
    assert moved is rule.continual is report.moving is ("Continual" in type(rule).__name__)
    assert ("weights moving" in str(report)) is moved
    assert ("weights held still" in str(report)) is not moved
    if not moved:
        assert report == eqprop.gddcheck(model, rule, x, y)


def test_a_wrong_learning_rate_is_an_error_where_theta_does_not_move_too():
    model, (x, y) = real_time(), batch()
    for rule in RULES.values():
        with pytest.raises(ValueError, match="learning_rates"):
            eqprop.gddcheck(model, rule, x, y, learning_rates=-0.5)


def test_the_shares_of_the_learning_rates_that_move_theta_within_the_phase():
    shares = {name: rule.moving_share for name, rule in RULES.items()}
    assert shares == {name: float("Continual" in name) for name in RULES}
    assert {rule.moving_share for rule in RESCALED.values()} == {0.25}


# gddcheck


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("rule", ["EP", "ContinualEP", "VF", "ContinualVF"])
def test_gddcheck_passes_where_the_theorem_holds(rule, activation):
    x, y = batch()
    rule = getattr(eqprop, rule)(beta=1e-4, free_steps=T, nudged_steps=K)
    tight = eqprop.Tolerances(relative_error=1e-2, angle=0.5, sign_agreement=0.99)
    report = eqprop.gddcheck(real_time(activation=activation), rule, x, y, tolerances=tight)
    assert report.passed, report


def test_gddcheck_passes_for_the_toy_model_with_the_errors_of_its_closed_form():
    zero = torch.zeros(1, 1, dtype=torch.float64)
    beta = 0.01
    report = eqprop.gddcheck(eqprop.toy_model(), continual_ep(beta), zero, zero)
    assert report.passed, report
    # −Δ(t) = (½ − β)ᵗ θ against ∇(t) = (½)ᵗ θ, and half of each for θ
    ours = [(0.5 - beta) ** t for t in range(K)]
    exact = [0.5**t for t in range(K)]
    error = math.dist(ours, exact) / math.hypot(*exact)
    assert [row.relative_error for row in report.rows] == pytest.approx([error, error], rel=1e-9)
    assert report.angle == 0
    assert [row.name for row in report.rows] == ["neurons s", "theta"]


def test_the_rows_of_gddcheck_are_the_measures_of_the_two_processes():
    model, (x, y) = real_time(), batch()
    rule = continual_ep(beta=0.3)
    report = eqprop.gddcheck(model, rule, x, y)
    ours = eqprop.time_resolved(model, rule, x, y)
    exact = eqprop.time_resolved(model, RULES["BPTT"], x, y)
    pairs = [(ours.neurons[n], exact.neurons[n]) for n in model.layer_names]
    pairs += [(ours.synapses[n], exact.synapses[n]) for n, _ in model.named_parameters()]
    for row, (a, b) in zip(report.rows, pairs, strict=True):
        assert row.relative_error == pytest.approx(float(eqprop.relative_error(a, b)))
        assert row.angle == pytest.approx(float(eqprop.angle(a.sum(0), b.sum(0))))
        signs = (a.sign() == b.sign())[b != 0].double().mean()
        assert row.sign_agreement == pytest.approx(float(signs))
    assert report.angle == pytest.approx(float(eqprop.angle(ours.total(), exact.total())))
    assert len({round(row.angle, 3) for row in report.rows}) == len(report.rows)


def test_gddcheck_passes_for_a_users_primitive():
    x, y = batch()
    assert eqprop.gddcheck(primitive(), continual_ep(), x, y).passed


def test_gddcheck_passes_for_rbp_after_a_settled_free_phase():
    x, y = batch()
    tight = eqprop.Tolerances(relative_error=1e-9, angle=1e-4, sign_agreement=0.999)
    rule = eqprop.RBP(free_steps=T, backward_steps=K)
    report = eqprop.gddcheck(real_time(), rule, x, y, tolerances=tight)
    assert report.passed, report
    assert report.steps == K


@pytest.mark.parametrize("learning_rates", [None, 0.5])
@pytest.mark.parametrize("backward_steps", [K, None])
def test_gddcheck_of_bptt_finds_no_difference(backward_steps, learning_rates):
    x, y = batch()
    rule = eqprop.BPTT(free_steps=20, backward_steps=backward_steps)
    report = eqprop.gddcheck(real_time(), rule, x, y, learning_rates=learning_rates)
    steps = backward_steps or 20
    assert (report.rule, report.steps, report.moving) == ("BPTT", steps, False)
    assert str(report).startswith(f"BPTT against BPTT over {steps} steps, weights held still")
    for row in report.rows:
        assert (row.relative_error, row.sign_agreement, row.passed) == (0, 1, True)
        assert row.angle < 5e-6  # arccos near 1


def test_gddcheck_passes_with_the_small_learning_rates_of_the_double_limit():
    x, y = batch()
    report = eqprop.gddcheck(real_time(), continual_ep(), x, y, learning_rates=1e-6)
    assert report.passed, report


@dataclass(frozen=True, kw_only=True)
class Altered(eqprop.Rule):
    """Another rule, its gradients multiplied by given factors."""

    rule: eqprop.Rule
    neurons: float = 1.0
    synapses: float = 1.0

    @property
    def horizon(self):
        return self.rule.horizon

    @property
    def moving_share(self):
        return self.rule.moving_share

    def present(self, model, x, y, cost, sign):
        return self.rule.present(model, x, y, cost, sign)

    def resolved(self, trial):
        for step in self.rule.resolved(trial):
            yield eqprop.Step(
                tuple(self.neurons * layer for layer in step.neurons),
                {name: self.synapses * value for name, value in step.synapses.items()},
            )

    def applied(self, trial):
        return (step.synapses for step in self.resolved(trial))


def failed(report):
    return {row.name for row in report.rows if not row.passed}


def test_gddcheck_fails_for_synapses_of_the_wrong_sign():
    model, (x, y) = real_time(), batch()
    rule = Altered(rule=continual_ep(), synapses=-1.0, free_steps=T)
    report = eqprop.gddcheck(model, rule, x, y)
    assert not report.passed
    assert failed(report) == {name for name, _ in model.named_parameters()}
    for row in report.synapses:
        assert row.relative_error == pytest.approx(2, abs=0.02)
        assert row.angle == pytest.approx(180, abs=1)
        assert row.sign_agreement < 0.01


def test_gddcheck_fails_for_neurons_of_the_wrong_sign():
    x, y = batch()
    rule = Altered(rule=continual_ep(), neurons=-1.0, free_steps=T)
    report = eqprop.gddcheck(real_time(), rule, x, y)
    assert failed(report) == {"neurons hidden1", "neurons hidden2", "neurons output"}


def test_gddcheck_fails_for_a_factor_that_no_angle_shows():
    x, y = batch()
    rule = Altered(rule=continual_ep(), synapses=0.5, free_steps=T)
    report = eqprop.gddcheck(real_time(), rule, x, y)
    assert not report.passed
    assert all(row.angle < 1 and row.sign_agreement > 0.99 for row in report.synapses)
    assert [row.relative_error for row in report.synapses] == pytest.approx(
        [0.5] * len(report.synapses), abs=0.01
    )


def test_gddcheck_fails_for_backward_weights_of_the_opposite_sign():
    x, y = batch()
    model = real_time(tied=False, angle=180.0)
    report = eqprop.gddcheck(model, continual_vf(), x, y)
    assert "neurons hidden2" in failed(report)
    assert "synapses.1.weight" in failed(report)
    assert eqprop.gddcheck(real_time(tied=False), continual_vf(), x, y).passed


def test_gddcheck_fails_for_a_huge_beta():
    x, y = batch()
    assert not eqprop.gddcheck(real_time(), continual_ep(beta=1.0), x, y).passed


def test_gddcheck_fails_for_large_learning_rates():
    model, (x, y) = real_time(), batch()
    assert eqprop.gddcheck(model, continual_ep(), x, y).passed
    report = eqprop.gddcheck(model, continual_ep(), x, y, learning_rates=1e-2)  # η/β = 10
    assert not report.passed


def test_tolerances_decide_the_verdict_each_by_itself():
    model, (x, y) = real_time(), batch()
    rule = continual_ep(beta=0.03)

    def passes(**limits):
        tolerances = eqprop.Tolerances(**limits)
        return eqprop.gddcheck(model, rule, x, y, tolerances=tolerances).passed

    assert passes()
    assert not passes(relative_error=1e-6)
    assert not passes(angle=1e-4)
    assert not eqprop.gddcheck(model, continual_ep(beta=1.0), x, y).passed
    lax = eqprop.Tolerances(relative_error=100.0, angle=180.0, sign_agreement=0.0)
    assert eqprop.gddcheck(model, continual_ep(beta=1.0), x, y, tolerances=lax).passed
    flipped = Altered(rule=rule, synapses=-1.0, free_steps=T)
    but_signs = eqprop.Tolerances(relative_error=100.0, angle=180.0)
    assert not eqprop.gddcheck(model, flipped, x, y, tolerances=but_signs).passed


@pytest.mark.parametrize(("beta", "verdict"), [(1e-3, "PASSED"), (1.0, "FAILED")])
def test_the_report_prints_every_row_the_verdict_and_the_tolerances(beta, verdict):
    model, (x, y) = real_time(), batch()
    tolerances = eqprop.Tolerances(relative_error=0.123, angle=7.5, sign_agreement=0.85)
    text = str(eqprop.gddcheck(model, continual_ep(beta), x, y, tolerances=tolerances))
    lines = text.splitlines()
    for name in [n for n, _ in model.named_parameters()] + [
        f"neurons {n}" for n in model.layer_names
    ]:
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert line.endswith(("ok", "FAIL"))
    assert lines[0].startswith("ContinualEP")
    assert f"{K} steps" in lines[0]
    assert lines[-1].startswith(verdict)
    assert all(limit in lines[-1] for limit in ("0.123", "7.5°", "85%"))
    assert ("FAIL" in "".join(lines[:-1])) == (verdict == "FAILED")


def test_the_report_prints_the_residual_of_an_unsettled_free_phase():
    model, (x, y) = real_time(), batch()
    rule = eqprop.ContinualEP(beta=1e-3, free_steps=6, nudged_steps=6)
    report = eqprop.gddcheck(model, rule, x, y)
    residual = eqprop.relax(model, x, 6).residual
    assert residual > 1e-3
    assert report.residual == residual
    assert f"residual {residual:.1e}" in str(report)
    assert not report.passed  # the nudged phase goes on relaxing, and Δ divides that by β


def test_the_report_of_an_ensemble_is_that_of_its_worst_member():
    x, y = batch()
    betas = vector(1e-4, 0.8, 1e-2)
    net = real_time(ensemble=3)
    together = eqprop.gddcheck(net, continual_ep(beta=betas), x, y)
    alone = [
        eqprop.gddcheck(net.member(i), continual_ep(beta=float(betas[i])), x, y) for i in range(3)
    ]
    assert [report.passed for report in alone] == [True, False, True]
    assert not together.passed
    for row, *single in zip(together.rows, *(report.rows for report in alone), strict=True):
        # the members' own matrix products are rounded differently, and Δ divides that by β
        assert row.relative_error == pytest.approx(max(r.relative_error for r in single), rel=1e-6)
        assert row.angle == pytest.approx(max(r.angle for r in single), abs=1e-4)
        assert row.sign_agreement == pytest.approx(min(r.sign_agreement for r in single))
    assert together.angle == pytest.approx(max(report.angle for report in alone), abs=1e-4)
