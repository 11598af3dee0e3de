"""The OpenAPI document lists all errors; ``make test-fuzz`` checks the service against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.live import gateway


def assert_fits(body: dict[str, Any], schema: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Assert that ``body`` has the fields of a ``$ref`` to one of ``schemas``."""
    model = schemas[schema["$ref"].rpartition("/")[2]]
    assert set(model["required"]) <= set(body) <= set(model["properties"])
    for name, value in body.items():
        if isinstance(value, dict):
            assert_fits(value, model["properties"][name], schemas)


async def test_openapi_lists_errors_of_every_operation(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("k", "t"))
    async with (
        gateway(api_keys_file=keys) as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):
        document = (await http.get("/openapi.json", headers=bearer("k"))).json()
        operations = [
            (path, verb, operation["responses"])
            for path, verbs in document["paths"].items()
            for verb, operation in verbs.items()
            if not path.startswith(("/health", "/metrics"))
        ]
        assert len(operations) > 15
        for path, verb, answers in operations:
            refused = await http.request(verb, path)
            assert refused.status_code == 401, (path, verb)
            for kind in ("4XX", "5XX"):
                schema = answers[kind]["content"]["application/json"]["schema"]
                assert_fits(refused.json(), schema, document["components"]["schemas"])
            assert "422" not in answers, "FastAPI's own shape is not what is answered"


async def test_openapi_lists_statuses_of_health_and_metrics(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("k", "t"))
    async with (
        gateway(api_keys_file=keys) as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):
        paths = (await http.get("/openapi.json", headers=bearer("k"))).json()["paths"]
        server.runtime.lifecycle.begin_drain()
        assert (await http.get("/health/ready")).status_code == 503
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers=bearer("k"))).status_code == 403
    for path, statuses in {
        "/health/live": {"200"},
        "/health/ready": {"200", "503"},
        "/health/free": {"200", "503"},
        "/health/startup": {"200", "503"},
        "/metrics": {"200", "401", "403"},
    }.items():
        assert set(paths[path]["get"]["responses"]) == statuses, path


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
async def test_docs_pages_with_foreign_scripts_are_not_served(path: str) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize("name", ["%0d%0aX-Evil:%20a", "%E4%BD%A0", "%00", "a%7F"])
async def test_deepgram_endpoint_refuses_parameter_of_any_name(name: str) -> None:
    """The name is sent in a header, where it must not end the line or be invalid."""
    async with gateway() as server, httpx.AsyncClient(timeout=60, base_url=server.http) as http:
        answer = await http.post(f"/v1/speak?{name}=1", json={"text": "Hello."})
        assert answer.status_code == 400
        assert answer.json()["err_code"] == "UNSUPPORTED"
        assert answer.headers["dg-error"].isprintable()
        assert "x-evil" not in answer.headers
