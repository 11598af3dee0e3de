"""The compiler half of the backend."""

from triton.backends.compiler import BaseBackend


class CPUInterpreterBackend(BaseBackend):
    """Accept the target "cpu" and refuse to compile for it."""

    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "cpu-interpreter"

    def parse_options(self, options):
        raise NotImplementedError("kernels are interpreted: set TRITON_INTERPRET=1")

    def add_stages(self, stages, options, language=None):
        raise NotImplementedError

    def load_dialects(self, context):
        raise NotImplementedError

    def get_module_map(self):
        raise NotImplementedError
