"""A local model hub with a single model, for tests of downloads."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODEL = "org/voice"


class SmallHub:
    """Serves the files of a folder.

    ``commit`` is the head of its branch; ``asked`` counts the look-ups. While ``held`` is set, a
    download of weights sends its headers and no content. Each look-up is refused with ``refusal``,
    a status and the hub's name of the error, if there is one.
    """

    def __init__(self, folder: Path) -> None:
        self.files = {file.name: file.read_bytes() for file in folder.iterdir()}
        self.commit, self.asked = "a" * 40, 0
        self.refusal: tuple[int, str] | None = None
        self.held, self.is_downloading = threading.Event(), threading.Event()

    def listing(self, is_tree: bool) -> object:
        """The answer to a query for the files with their sizes, or for the model."""
        if is_tree:
            sizes = {name: len(content) for name, content in self.files.items()}
            return [{"type": "file", "path": n, "size": s, "oid": ""} for n, s in sizes.items()]
        listed = [{"rfilename": name} for name in self.files]
        return {"id": MODEL, "sha": self.commit, "siblings": listed}


def _handler(hub: SmallHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            if found := re.search(r"/resolve/[^/]+/(.+)$", self.path):
                content = hub.files[found[1]]
            else:
                hub.asked += 1
                if hub.refusal is not None:
                    return self._refuse(*hub.refusal)
                content = json.dumps(hub.listing("/tree/" in self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", hub.commit)
            self.end_headers()
            if self.command == "GET":
                if self.path.endswith(".safetensors") and hub.held.is_set():
                    self.wfile.flush()
                    hub.is_downloading.set()
                    self.rfile.read(1)  # until the client disconnects
                    return
                self.wfile.write(content)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print no traceback for the clients that some tests kill."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serving(folder: Path) -> Iterator[tuple[SmallHub, str]]:
    """Run a hub for the block; yields the hub and its address."""
    hub = SmallHub(folder)
    server = _Server(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
