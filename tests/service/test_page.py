"""Delivery of the page at `GET /`; the page itself is tested in a browser (tests/page)."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from service import __version__
from service.page.routes import CONTENT_SECURITY_POLICY, PAGES
from tests.service.live import gateway

ROOT = Path(__file__).parents[2]
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


async def test_page_files_are_served_unchanged_with_type_and_headers() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        for path, (package, name, _) in PAGES.items():
            file = ROOT / package / name
            answer = await http.get(path)
            assert (answer.status_code, answer.content) == (200, file.read_bytes())
            assert answer.headers["content-type"].split(";")[0] == TYPES[file.suffix]
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-cache"
            head = await http.head(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(answer.content))


async def test_status_for_clients_of_cartesia_is_told_instead_of_the_page() -> None:
    """``get_status`` of its client asks ``/``, with the header that it always sends."""
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        told = await http.get("/", headers={"cartesia-version": "2026-03-01"})
        assert told.json() == {"ok": True, "version": __version__}
        page = await http.get("/")
        assert page.headers["content-type"].startswith("text/html")
        file = await http.get("/static/page.js", headers={"cartesia-version": "2026-03-01"})
        assert file.headers["content-type"].startswith("text/javascript")


async def test_page_file_with_matching_etag_gets_304() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        tag = (await http.get("/static/page.js")).headers["etag"]
        other = (await http.get("/static/view.js")).headers["etag"]
        for sent, status in ((tag, 304), (f"W/{tag}", 304), (f'"x", {tag}', 304), (other, 200)):
            answer = await http.get("/static/page.js", headers={"if-none-match": sent})
            assert answer.status_code == status
            assert answer.headers["etag"] == tag
            assert bool(answer.content) == (status == 200)


@pytest.mark.parametrize(
    "path",
    ["/static/", "/static/page.py", "/static/../page.py", "/static/%2e%2e/page.py", "/page.js"],
)
async def test_other_paths_and_methods_are_not_served(path: str) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        assert (await http.get(path)).status_code == 404
        assert (await http.post("/")).status_code == 405


def test_page_lists_all_files_and_has_no_inline_or_foreign_code() -> None:
    files = (ROOT / "service" / "page").iterdir()
    there = {f"page/{file.name}" for file in files if file.is_file() and file.suffix != ".py"}
    assert there == {name for package, name, _ in PAGES.values() if package == "service"}
    html = (ROOT / "service/page/index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|style=|https?://", html)
    for kind in ("script-src", "style-src", "connect-src"):
        assert f"{kind} 'self';" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    for script in (ROOT / "service/page").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write", script.read_text()
        )
