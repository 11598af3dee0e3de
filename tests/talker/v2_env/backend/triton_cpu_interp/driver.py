"""The driver half of the backend, active while kernels are interpreted."""

import os

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class CPUInterpreterDriver(DriverBase):
    """Active only under TRITON_INTERPRET=1: Triton refuses to choose between active drivers."""

    @classmethod
    def is_active(cls):
        return os.environ.get("TRITON_INTERPRET") == "1"

    def map_python_to_cpp_type(self, ty):
        raise NotImplementedError

    def get_current_target(self):
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_current_device(self):
        return 0

    def get_benchmarker(self):
        raise NotImplementedError
