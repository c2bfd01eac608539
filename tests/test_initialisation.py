"""Where a network starts: the two initialisations, the angle Ψ, and what a seed decides.

Oracle: the formulas of appendix F.1 and the statistics of the uniform distribution. Every bound
on a random number is four of its standard errors: wrong once in 16 000 draws of the seed, and
the seeds are fixed.
"""

import math

import pytest
import torch

import eqprop
from eqprop import Dense, Input, Layer

ANGLES = [0.0, 22.5, 45.0, 67.5, 90.0, 112.5, 135.0, 157.5, 180.0]


def weights(net):
    return {name: p for name, p in net.named_parameters() if name.endswith("weight")}


def assert_uniform(sample, bound):
    """Inside ±bound, reaching it, with the mean and variance of the uniform distribution."""
    n = sample.numel()
    assert float(sample.abs().max()) <= bound
    assert float(sample.abs().max()) > bound * (1 - 12 / n)  # else once in e^12 draws
    assert abs(float(sample.mean())) < 4 * bound / math.sqrt(3 * n)
    # the variance of v² is bound⁴ (1/5 − 1/9) = 4/45 bound⁴
    assert abs(float((sample**2).mean()) - bound**2 / 3) < 4 * bound**2 * math.sqrt(4 / 45 / n)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_glorot_weights_are_uniform_in_their_bound_and_biases_zero(tied):
    net = eqprop.layered(60, 50, 40, tied=tied, init="glorot", dtype=torch.float64)
    assert_uniform(net.synapses[0].weight, math.sqrt(6 / (60 + 50)))
    assert_uniform(net.synapses[1].weight, math.sqrt(6 / (50 + 40)))
    if not tied:
        assert_uniform(net.synapses[1].backward_weight, math.sqrt(6 / (50 + 40)))
    for synapse in net.synapses:
        assert bool((synapse.bias == 0).all())


def test_glorot_is_the_default():
    assert_uniform(eqprop.layered(60, 50).synapses[0].weight, math.sqrt(6 / 110))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_fan_in_weights_and_biases_are_uniform_in_one_over_the_root_of_fan_in(tied):
    net = eqprop.layered(60, 500, 400, tied=tied, init="fan_in", dtype=torch.float64)
    for synapse, n_in in zip(net.synapses, (60, 500), strict=True):
        assert_uniform(synapse.weight, 1 / math.sqrt(n_in))
        assert_uniform(synapse.bias, 1 / math.sqrt(n_in))
    if not tied:  # drawn from the forward weight: the fan-in of the forward direction
        assert_uniform(net.synapses[1].backward_weight, 1 / math.sqrt(500))


def test_a_tied_block_within_a_layer_is_symmetric_and_as_wide_as_any_other():
    """Made symmetric by copying one half: averaging the halves would halve the variance."""
    net = eqprop.Network(
        [Input(2), Layer("out", 70)],
        [Dense("input", "out"), Dense("out", "out")],
        dtype=torch.float64,
    )
    block = net.synapses[1].weight
    assert torch.equal(block, block.T)
    assert bool((block.diagonal() == 0).all())
    upper = block[torch.ones(70, 70).triu(1).bool()]
    assert_uniform(upper, math.sqrt(6 / 140))


def test_a_users_own_initialisation_gets_shape_fans_and_the_stream_of_the_seed():
    seen = []

    def normal(shape, fan_in, fan_out, source):
        seen.append((shape, fan_in, fan_out))
        return torch.randn(shape, generator=source, dtype=torch.float64) / fan_in

    first, again, other = (
        eqprop.layered(4, 3, 2, init=normal, seed=seed, dtype=torch.float64) for seed in (0, 0, 1)
    )
    assert seen[:4] == [((4, 3), 4, 3), ((3,), 4, 3), ((3, 2), 3, 2), ((2,), 3, 2)]
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
        assert not torch.equal(parameter, other.get_parameter(name))
        assert bool((parameter != 0).all())


@pytest.mark.parametrize("init", ["glorot", "fan_in"])
def test_the_same_seed_gives_the_same_network_in_either_precision(init):
    """The draw is in float64, so float32 is that network rounded, to the last bit."""
    args = {"tied": False, "angle": 70.0, "init": init, "seed": 3}
    double = eqprop.layered(7, 6, 5, 4, dtype=torch.float64, **args)
    single = eqprop.layered(7, 6, 5, 4, dtype=torch.float32, **args)
    again = eqprop.layered(7, 6, 5, 4, dtype=torch.float64, **args)
    assert len(list(double.parameters())) == 8
    for name, parameter in double.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
        assert torch.equal(parameter.to(torch.float32), single.get_parameter(name))


def test_initialisation_leaves_the_global_random_stream_alone():
    before = torch.get_rng_state()
    eqprop.layered(5, 4, 3, tied=False, angle=45.0, init="fan_in", ensemble=2)
    assert torch.equal(before, torch.get_rng_state())


def test_different_seeds_and_different_synapses_draw_independent_weights():
    one, two = (eqprop.layered(60, 60, 60, seed=s, dtype=torch.float64) for s in (0, 1))
    draws = [synapse.weight for net in (one, two) for synapse in net.synapses]
    for i, a in enumerate(draws):
        for b in draws[:i]:  # the correlation of n independent pairs has standard error 1/√n
            correlation = (a * b).sum() / (a.norm() * b.norm())
            assert abs(float(correlation)) < 4 / 60


def test_sign_flips_are_independent_of_the_weights_and_of_other_synapses():
    net = eqprop.layered(5, 60, 60, 60, tied=False, angle=90.0, dtype=torch.float64)
    masks = [s.backward_weight.T * s.weight.sign() for s in net.synapses[1:]]
    flips = [mask.sign() for mask in masks]
    assert abs(float((flips[0] * flips[1]).mean())) < 4 / 60
    assert abs(float((flips[0] * net.synapses[1].weight.sign()).mean())) < 4 / 60


def wide(angle, seed=0, **more):
    """2 weights × 200 × 100: the angle's standard error is half a degree at most."""
    return eqprop.layered(
        2, 200, 100, tied=False, angle=angle, seed=seed, dtype=torch.float64, **more
    )


def flipped(synapse):
    return synapse.backward_weight.mT.sign() != synapse.weight.sign()


@pytest.mark.parametrize("angle", ANGLES)
def test_the_share_of_flipped_signs_is_half_of_one_minus_cosine(angle):
    synapse = wide(angle).synapses[1]
    p = 0.5 * (1 - math.cos(math.radians(angle)))
    n = synapse.weight.numel()
    assert torch.equal(synapse.backward_weight.T.abs(), synapse.weight.abs())
    share = float(flipped(synapse).double().mean())
    assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / n)  # binomial: exact at 0 and 180


@pytest.mark.parametrize("angle", ANGLES)
def test_the_measured_angle_is_the_one_asked_for(angle):
    """cos Ψ is 1 − 2 × the share of flipped Σw², whose variance is p(1−p) Σw⁴/(Σw²)²."""
    synapse = wide(angle).synapses[1]
    p = 0.5 * (1 - math.cos(math.radians(angle)))
    w = synapse.weight
    error = 2 * math.sqrt(p * (1 - p) * float((w**4).sum() / (w**2).sum() ** 2))
    measured = float(synapse.angle())
    # arccos turns the rounding 1e-15 of a cosine near ±1 into 3e-8 radians
    low, high = (math.cos(math.radians(angle)) + k * 4 * error for k in (-1, 1))
    assert low - 1e-14 <= math.cos(math.radians(measured)) <= high + 1e-14
    if angle in (0.0, 180.0):
        assert torch.equal(synapse.backward_weight.T, w if angle == 0 else -w)
        assert abs(measured - angle) < 1e-5
    else:
        assert abs(measured - angle) < 2.5


def test_angle_is_the_papers_trace_formula():
    synapse = wide(45.0).synapses[1]
    f, b = synapse.weight.T, synapse.backward_weight
    kappa = torch.trace(f @ b.T) / (torch.trace(f @ f.T) * torch.trace(b @ b.T)).sqrt()
    assert float(synapse.angle()) == pytest.approx(math.degrees(math.acos(kappa)), abs=1e-9)


def test_tied_synapses_measure_no_angle():
    net = eqprop.layered(3, 4, 2, ensemble=(2,))
    assert net.synapses[1].angle().tolist() == [0.0, 0.0]


def test_forward_weights_do_not_depend_on_the_angle():
    nets = [eqprop.layered(6, 5, 4, 3, tied=False, angle=a, init="fan_in") for a in ANGLES]
    tied = eqprop.layered(6, 5, 4, 3, init="fan_in")
    for name, parameter in tied.named_parameters():
        for net in nets:
            assert torch.equal(parameter, net.get_parameter(name))


def test_a_larger_angle_flips_more_of_the_same_signs():
    """One draw decides them all, so that angles compare on the same network."""
    smaller, larger = (flipped(wide(angle).synapses[1]) for angle in (45.0, 90.0))
    assert bool((larger | ~smaller).all())
    assert int(larger.sum()) > int(smaller.sum())


def test_every_member_may_have_its_own_angle():
    net = wide(ANGLES, seed=4, ensemble=9)
    measured = net.synapses[1].angle()
    assert measured.shape == (9,)
    for i, angle in enumerate(ANGLES):
        assert abs(float(measured[i]) - angle) < 2.5
        alone = wide(angle, seed=4 + i)
        for name, parameter in alone.named_parameters():
            assert torch.equal(parameter, net.get_parameter(name)[i])


def test_members_of_a_grid_take_angles_and_seeds_in_row_major_order():
    angles = [0.0, 45.0, 90.0, 180.0]
    net = eqprop.layered(3, 5, 4, tied=False, ensemble=(2, 2), angle=angles, seed=[7, 7, 9, 1])
    for i, (angle, seed) in enumerate(zip(angles, [7, 7, 9, 1], strict=True)):
        alone = eqprop.layered(3, 5, 4, tied=False, angle=angle, seed=seed)
        for name, parameter in alone.named_parameters():
            assert torch.equal(parameter, net.get_parameter(name)[i // 2, i % 2])
