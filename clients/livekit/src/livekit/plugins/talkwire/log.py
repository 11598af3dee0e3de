"""The plugin's logger and version."""

from __future__ import annotations

import logging

__version__ = "0.1.0"

logger = logging.getLogger("livekit.plugins.talkwire")
