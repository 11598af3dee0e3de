"""A "cpu" backend for Triton that compiles nothing: kernels run in Triton's interpreter.

For tests only. With it installed, vLLM believes that Triton supports the CPU and dies without
TRITON_INTERPRET=1, so it must never be in the product's environment.
"""
