"""A pytest plugin for ``make test-quick``: torch and vLLM cannot be imported, installed or not."""

from __future__ import annotations

import sys

for name in ("torch", "vllm"):
    sys.modules[name] = None  # type: ignore[assignment]
