"""The first run on a GPU: everything in stages, each held against what arithmetic expects.

``make gpu-check`` (``python -m benchmarks.gpu_check``) needs no network, makes its own weights, and
goes on where it was interrupted. On a machine without a GPU the stages run with a small model, and
what only a GPU can show is marked as skipped.
"""
