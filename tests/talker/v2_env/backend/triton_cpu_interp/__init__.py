"""A "cpu" backend for Triton that compiles nothing: kernels run in Triton's interpreter.

For tests alone. Where it is installed vLLM believes that there is Triton on the CPU and dies
without TRITON_INTERPRET=1, so it must never be in the product's environment.
"""
