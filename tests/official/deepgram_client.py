"""The address of the service, as Deepgram's client takes it."""

from __future__ import annotations

from deepgram.environment import DeepgramClientEnvironment

from tests.e2e.live import Service


def environment(speaking: Service) -> DeepgramClientEnvironment:
    http, ws = f"http://127.0.0.1:{speaking.port}", f"ws://127.0.0.1:{speaking.port}"
    return DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
