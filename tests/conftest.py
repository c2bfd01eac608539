"""One thread and the same hypothesis examples every time, for all tests."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("eqprop", deadline=None, derandomize=True, max_examples=25, database=None)
settings.load_profile("eqprop")
