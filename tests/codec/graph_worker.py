"""The codec worker with graphs that are replayed on the CPU."""

from __future__ import annotations

import sys

from codec.worker import main
from tests.codec.fake_graphs import FakeRecorder

if __name__ == "__main__":
    sys.exit(main(find_recorder=lambda device: FakeRecorder()))
