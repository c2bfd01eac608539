"""The explorer: one HTML page that runs layered networks in the browser, without a server."""

from eqprop.explorer.networks import network, untied
from eqprop.explorer.page import write

__all__ = ["network", "untied", "write"]
