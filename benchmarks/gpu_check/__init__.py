"""The first run on a GPU: everything in stages, each compared with computed expectations.

``make gpu-check`` (``python -m benchmarks.gpu_check``) needs no network, makes its own weights, and
resumes after an interruption. Without a GPU the stages run with a small model, and checks that need
a GPU are marked as skipped.
"""
