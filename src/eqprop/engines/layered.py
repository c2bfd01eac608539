"""The common limits of the engines for layered networks."""

from __future__ import annotations

import torch

from eqprop.activations import HARD_SIGMOID, IDENTITY, SIGMOID, TANH
from eqprop.costs import SquaredError
from eqprop.engines.job import Job
from eqprop.model import Model
from eqprop.network import Network
from eqprop.nudging import OneSided, RandomSign
from eqprop.readouts import OutputLayer
from eqprop.rules import EP, VF, ContinualEP, ContinualVF, Rule
from eqprop.timesteps import Discrete

COMPUTED = ("forward", "hold", "output", "phi_gradient", "vector_field_gradient")
ACTIVATIONS = {SIGMOID: 0, TANH: 1, HARD_SIGMOID: 2, IDENTITY: 3}


def layered_obstacle(job: Job) -> str | None:
    """Return what none of these engines can run, as `Engine.obstacle` does; None if they can."""
    model, rule, readout = job.model, job.rule, job.readout
    # exactly these types: a user's subclass may compute something else
    if type(rule) not in (EP, ContinualEP, VF, ContinualVF):
        return f"the rule {type(rule).__name__}"
    if type(rule.nudging) not in (OneSided, RandomSign):
        return f"{type(rule.nudging).__name__} nudging"
    if rule.nudged_in_turn:
        return "layers in turn in the nudged phase"
    if type(readout) is not OutputLayer:
        return f"the read-out {type(readout).__name__}"
    if type(readout.cost) is not SquaredError:
        return "a cost other than SquaredError"
    if not job.update.linear:
        return "an update other than plain descent"
    if not isinstance(model, Network) or not model.is_chain():
        return "a model that is not a chain of dense layers"
    if any(getattr(type(model), name) is not getattr(Network, name) for name in COMPUTED):
        return f"a {type(model).__name__} with methods of its own"
    if any(synapse.shared_update for synapse in model.synapses):
        return "synapses that share their updates"
    if len(set(model.activations)) > 1 or model.activations[0] not in ACTIVATIONS:
        return "an activation of your own, or different ones"
    if model.input_activation not in (IDENTITY, model.activations[0]):
        return "an input with an activation of its own"
    if isinstance(model.time, Discrete) and model.time.relaxation != 1:
        return "relaxation other than 1"
    tied = {s.tied for s in model.synapses if not s.from_input}
    if len(tied) > 1 or (tied == {False} and not rule.vector_field):
        return "tied and untied synapses mixed, or EP on untied ones"
    return parameters_obstacle(model)


def groups_in_turn(net: Network, rule: Rule) -> int:
    """Return how many groups of layers the free phase moves in turn: every second layer, or all."""
    return len(net.split()) if rule.in_turn else 1


def parameters_obstacle(model: Model) -> str | None:
    """What keeps an engine from reading parameters as plain arrays; None if nothing does."""
    if model.dtype not in (torch.float32, torch.float64):
        return f"parameters of {model.dtype}"
    parameters = [p for _, p in model.named_parameters(remove_duplicate=False)]
    if not all(p.is_contiguous() for p in parameters):
        return "parameters that are not contiguous"
    if len({p.data_ptr() for p in parameters}) < len(parameters):
        return "parameters that share their memory"
    return None
