"""eqprop: equilibrium propagation with continual weight updates.

net  = eqprop.layered(784, 512, 10)                      # a network: F(x, s, θ)
eqprop.relax(net, x, steps=40)                           # its dynamics
rule = eqprop.ContinualEP(beta=0.2, free_steps=40, nudged_steps=15)
eqprop.gddcheck(net, rule, x, y)                         # does the rule follow BPTT?
eqprop.make_engine(net, rule, learning_rates=(0.0056, 0.0028)).step(x, y)
run  = eqprop.train("c-ep-1h", epochs=2, seeds=2)        # a recipe, on MNIST
eqprop.evaluate(run).error                               # test error in %, one per network
"""

from eqprop import quiet_start as quiet_start  # before the large imports
from eqprop.activations import Activation
from eqprop.analysis import (
    GddReport,
    Process,
    Tolerances,
    angle,
    gddcheck,
    relative_error,
    sign_agreement,
    time_resolved,
    total_update,
)
from eqprop.costs import SquaredError
from eqprop.dynamics import NonFinite, NonFiniteState, NotSettled, Relaxation, relax
from eqprop.engines import make_engine
from eqprop.model import Model
from eqprop.network import Input, Layer, Network, layered
from eqprop.nudging import Centred, Holomorphic, Nudging, OneSided, RandomSign
from eqprop.primitive import Primitive, VectorField, toy_model
from eqprop.readouts import CrossEntropy, OutputLayer, Readout
from eqprop.rules import BPTT, EP, RBP, VF, ContinualEP, ContinualVF, Rule, Step
from eqprop.runs import Run, evaluate, load, train
from eqprop.synapses import Conv2d, Dense, Synapses
from eqprop.timesteps import Discrete, RealTime
from eqprop.updates import SGD, Optimiser, Update

__version__ = "0.1.0"

__all__ = [
    "BPTT",
    "EP",
    "RBP",
    "SGD",
    "VF",
    "Activation",
    "Centred",
    "ContinualEP",
    "ContinualVF",
    "Conv2d",
    "CrossEntropy",
    "Dense",
    "Discrete",
    "GddReport",
    "Holomorphic",
    "Input",
    "Layer",
    "Model",
    "Network",
    "NonFinite",
    "NonFiniteState",
    "NotSettled",
    "Nudging",
    "OneSided",
    "Optimiser",
    "OutputLayer",
    "Primitive",
    "Process",
    "RandomSign",
    "Readout",
    "RealTime",
    "Relaxation",
    "Rule",
    "Run",
    "SquaredError",
    "Step",
    "Synapses",
    "Tolerances",
    "Update",
    "VectorField",
    "angle",
    "evaluate",
    "gddcheck",
    "layered",
    "load",
    "make_engine",
    "relative_error",
    "relax",
    "sign_agreement",
    "time_resolved",
    "total_update",
    "toy_model",
    "train",
]
