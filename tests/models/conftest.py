"""Every implementation of the kernels."""

import pytest
from cpu_kernels import need_cpu_kernels


@pytest.fixture(params=["auto", "plain"])
def kernels(request):
    if request.param == "auto":
        need_cpu_kernels()
    return request.param
