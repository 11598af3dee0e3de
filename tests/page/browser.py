"""A headless Chromium, driven directly over the DevTools protocol with real keys and clicks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

FLAGS = (
    "--headless",
    "--no-sandbox",  # not available to root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    # A fake microphone that beeps, without a permission prompt
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "Space": 32, "ArrowRight": 39, "ArrowLeft": 37}
_TEXTS = {"Enter": "\r", "Space": " "}
CTRL = 2


def chromium() -> str:
    """The path of the browser. AssertionError if there is none."""
    named = os.environ.get("CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    assert found, "no Chromium here"
    return found


class Page:
    """One tab, which records its console output, requests and WebSocket messages."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._serve: dict[str, tuple[int, str, str]] = {}
        #: Console errors and warnings, uncaught exceptions, violations of the security policy.
        self.complaints: list[str] = []
        #: WebSocket messages from the server, in order.
        self.received: list[bytes | str] = []
        #: Text messages sent to the server.
        self.sent: list[dict[str, Any]] = []
        #: Requested addresses, including WebSockets.
        self.requests: list[str] = []
        #: Headers of requests, as they were sent.
        self.headers: list[dict[str, str]] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        async with asyncio.timeout(60):
            return await answer

    async def read(self) -> None:
        """Process the browser's messages until the connection closes."""
        async for text in self._socket:
            message = json.loads(text)
            if "id" in message:
                answer = self._answers.pop(message["id"])
                if "error" in message:
                    answer.set_exception(AssertionError(message["error"]))
                else:
                    answer.set_result(message["result"])
            else:
                self._on_event(message["method"], message["params"])

    def _on_event(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.requestWillBeSentExtraInfo":
                self.headers.append(params["headers"])
            case "Network.webSocketCreated":
                self.requests.append(params["url"])
            case "Network.webSocketFrameReceived":
                data = params["response"]["payloadData"]
                binary = params["response"]["opcode"] == 2
                self.received.append(base64.b64decode(data) if binary else data)
            case "Network.webSocketFrameSent" if params["response"]["opcode"] == 1:
                self.sent.append(json.loads(params["response"]["payloadData"]))
            case "Fetch.requestPaused":
                self._fulfil(params)

    def _fulfil(self, params: dict[str, Any]) -> None:
        path = params["request"]["url"].split("?")[0]
        status, kind, body = next(v for end, v in self._serve.items() if path.endswith(end))
        answer = self.call(
            "Fetch.fulfillRequest",
            requestId=params["requestId"],
            responseCode=status,
            responseHeaders=[{"name": "content-type", "value": kind}],
            body=base64.b64encode(body.encode()).decode(),
        )
        task = asyncio.get_running_loop().create_task(answer)
        task.add_done_callback(lambda done: done.exception())

    async def serve(self, end: str, kind: str, body: str) -> None:
        """Intercept requests for addresses that end with ``end`` and answer them with ``body``."""
        self._serve[end] = (200, kind, body)
        patterns = [{"urlPattern": f"*{end}"} for end in self._serve]
        await self.call("Fetch.enable", patterns=patterns)

    async def open(self, url: str) -> None:
        """Load a page completely."""
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState == 'complete' && location.href == {url!r}")

    async def run(self, expression: str) -> Any:
        """Evaluate an expression on the page; promises are awaited."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def text(self, name: str) -> str:
        """The visible text of the element with this id."""
        return str(await self.run(f"document.getElementById({name!r}).innerText"))

    async def until(self, expression: str, seconds: float = 60) -> Any:
        """Wait until an expression is true, and return its value."""
        last: Any = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (last := await self.run(expression)):
                    await asyncio.sleep(0.02)
                return last
        state = await self.run("document.body.innerText")
        raise AssertionError(f"never: {expression}\n{state}\n{self.complaints}")

    async def key(self, key: str, modifiers: int = 0) -> None:
        """Press and release a key."""
        code = _KEYS.get(key, ord(key.upper()[0]))
        name = " " if key == "Space" else key
        common = {"key": name, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {} if modifiers else {"text": _TEXTS.get(key, "")}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        """Replace the focused field's text."""
        await self.run("document.activeElement.select()")
        await self.call("Input.insertText", text=text)

    async def click(self, name: str) -> None:
        """Click the middle of the element with this id."""
        x, y = await self.run(
            f"(() => {{ const e = document.getElementById({name!r}); e.scrollIntoView({{block:"
            "'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        common = {"x": x, "y": y, "button": "left", "clickCount": 1}
        await self.call("Input.dispatchMouseEvent", type="mousePressed", **common)
        await self.call("Input.dispatchMouseEvent", type="mouseReleased", **common)

    async def look(
        self, width: int, height: int, *, dark: bool = False, mobile: bool = False
    ) -> None:
        """Set the window's size and the preferred colour scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, file: Path) -> None:
        """Save the whole page as PNG."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """Start a browser with an empty tab; kill it at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        nowhere = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *command, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        try:
            async with connect(
                await _address(process, Path(profile)), max_size=64 << 20, compression=None
            ) as socket:
                tab = Page(socket)
                reading = asyncio.create_task(tab.read())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                try:
                    yield tab
                finally:
                    reading.cancel()
                    await asyncio.wait([reading])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _address(process: asyncio.subprocess.Process, profile: Path) -> str:
    """The DevTools address of the first tab."""
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, "the browser ended"
            with contextlib.suppress(FileNotFoundError, ValueError, IndexError, OSError):
                port = int((profile / "DevToolsActivePort").read_text().split()[0])
                tab = (await asyncio.to_thread(_tabs, port))[0]
                return str(tab["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)


def _tabs(port: int) -> list[dict[str, Any]]:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=60) as answer:
        return [tab for tab in json.load(answer) if tab["type"] == "page"]
