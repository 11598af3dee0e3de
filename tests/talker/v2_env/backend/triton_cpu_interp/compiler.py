"""The half of a backend that Triton looks for first."""

from triton.backends.compiler import BaseBackend


class CPUInterpreterBackend(BaseBackend):
    """Takes the target "cpu" and refuses to compile for it."""

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
