"""Where tests compute. `pytest -m gpu` runs all that use a GPU."""

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
needs_gpu = pytest.mark.gpu  # skipped without one (conftest.py)
on_device = pytest.mark.gpu(or_cpu=True)  # on DEVICE
