"""A pod's lifecycle without a cluster: start, probes, speech, metrics, SIGTERM during speech."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from talkwire_client import ChunkingOptions, Client, RefusedError
from tests.deploy.container import ROOT, Container, container
from tests.deploy.render import identity, render
from tests.faults.fake_service import free_port
from tests.service.auth.keyring import entry

TEXT = "This sentence is being spoken. And this one is finished as well, whatever happens."
#: For speech that lasts while the pod is looked at.
LONG = " ".join([TEXT] * 3)
#: Greedy and with full lookahead, so that the samples are reproducible.
EXACT: dict[str, Any] = {
    "temperature": 0.0,
    "chunking": ChunkingOptions(lookahead_frames=10),
}


def ask(running: Container, path: str, port: int | None = None) -> tuple[int, str]:
    """Status and body; status 0 if the connection fails."""
    address = f"http://127.0.0.1:{port or running.port}{path}"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def until(what: str, condition: Callable[[], bool], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def passes(running: Container, probe: dict[str, Any]) -> Callable[[], bool]:
    """A condition: whether the kubelet would count the probe as passed."""

    def condition() -> bool:
        assert running.process.poll() is None, "the container ended"
        return 200 <= ask(running, probe["httpGet"]["path"])[0] < 400

    return condition


@pytest.mark.long
@pytest.mark.slow
async def test_pod_starts_speaks_and_drains_without_cutting_speech() -> None:
    objects = {identity(o): o for o in render(ROOT / "deploy/k8s/overlays/cpu-embedded")}
    pod = objects["Deployment", "talkwire"]["spec"]["template"]["spec"]
    settings = objects["ConfigMap", "talkwire"]["data"]
    main = pod["containers"][0]
    startup, ready, live = (main[f"{name}Probe"] for name in ("startup", "readiness", "liveness"))
    keys = {"keys": [entry("the-key", "acme")]}
    secrets = {"talkwire-api-keys": {"keys.json": json.dumps(keys), "tokens": "0" * 64}}
    with container(pod, settings, free_port(), free_port(), secrets) as running:
        until("it answers probes", passes(running, live), 60)
        patience_s = startup["periodSeconds"] * startup["failureThreshold"]
        await asyncio.to_thread(until, "it starts", passes(running, startup), patience_s)
        await asyncio.to_thread(until, "it is ready", passes(running, ready), 10)
        url = f"ws://127.0.0.1:{running.port}/v1/tts/stream"
        with pytest.raises(RefusedError, match="401"):
            async with Client(url):
                pass
        assert ask(running, "/metrics")[0] == 401
        async with Client(url, api_key="the-key") as client:
            async with client.speak(TEXT, **EXACT) as speech:
                want = await speech.read()
            assert metric(running, "tts_contexts_active") == 0
            # The kubelet runs the preStop hook first; new clients can still arrive meanwhile.
            hook = asyncio.create_task(
                asyncio.sleep(main["lifecycle"]["preStop"]["sleep"]["seconds"])
            )
            async with (
                Client(url, api_key="the-key") as newcomer,
                newcomer.speak(TEXT, **EXACT) as speech,
            ):
                late = await speech.read()
            assert late == want
            assert ask(running, ready["httpGet"]["path"])[0] == 200
            await hook
            async with client.speak(LONG, **EXACT) as speech:
                want = await speech.read()
            async with client.speak(LONG, **EXACT, max_lead_ms=2_000) as speech:
                chunks = aiter(speech)
                pcm = (await anext(chunks)).data
                assert metric(running, "tts_contexts_active") == 1
                running.terminate()
                await asyncio.to_thread(
                    until,
                    "readiness goes",
                    lambda: ask(running, ready["httpGet"]["path"])[0] == 503,
                    10,
                )
                assert metric(running, "tts_contexts_active") == 1, (
                    "readiness goes before the speech"
                )
                assert ask(running, live["httpGet"]["path"])[0] == 200, (
                    "draining is no reason to die"
                )
                pcm += b"".join([chunk.data async for chunk in chunks])
        assert pcm == want
        left_s = (
            pod["terminationGracePeriodSeconds"] - main["lifecycle"]["preStop"]["sleep"]["seconds"]
        )
        assert running.process.wait(left_s) == 0


def metric(running: Container, name: str) -> float:
    text = ask(running, "/metrics", running.admin_port)[1]
    (line,) = [x for x in text.splitlines() if x.startswith(f"{name} ")]
    return float(line.rsplit(" ", 1)[1])
