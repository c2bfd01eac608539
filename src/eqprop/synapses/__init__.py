"""Synapses hold the weights of a network. An update sees only the two layers of its synapse."""

from eqprop.initial import INITS, Init, angle_between
from eqprop.synapses.conv2d import Conv2d
from eqprop.synapses.dense import Dense
from eqprop.synapses.synapses import INPUT, Synapses

__all__ = ["INITS", "INPUT", "Conv2d", "Dense", "Init", "Synapses", "angle_between"]
