"""Type aliases for tensors and collections of tensors."""

from torch import Tensor

Shape = tuple[int, ...]  # one sample of a layer or of the input; (n,) if it is flat
State = tuple[Tensor, ...]  # one tensor [*ensemble, batch, *shape] per layer, input → output
Parameters = dict[str, Tensor]  # by name, as in named_parameters()
Gradients = dict[str, Tensor]  # one per parameter, uphill on the loss
Held = dict[int, Tensor]  # by layer: the drive that comes from the input
