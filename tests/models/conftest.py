"""Every implementation of the kernels."""

import pytest
import torch

from bert_recipes.models.kernels.loading import load_kernels


@pytest.fixture(params=["auto", "plain"])
def kernels(request):
    if load_kernels(request.param, torch.device("cpu")) is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    return request.param
