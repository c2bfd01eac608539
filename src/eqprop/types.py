"""What tensors mean, by name."""

from torch import Tensor

Shape = tuple[int, ...]  # of one sample of a layer or of the input; (n,) where it is flat
State = tuple[Tensor, ...]  # one tensor [*ensemble, batch, *shape] per layer, input → output
Parameters = dict[str, Tensor]  # by name, as in named_parameters()
Gradients = dict[str, Tensor]  # one for each parameter, uphill on the loss
Held = dict[int, Tensor]  # the drive on each layer that the input alone gives
