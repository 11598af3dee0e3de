"""The OpenAPI document lists all errors; ``make test-fuzz`` checks the service against it."""

from __future__ import annotations

import httpx
import pytest

from tests.service.live import gateway


async def test_openapi_lists_errors_of_every_operation() -> None:
    async with gateway() as server, httpx.AsyncClient(base_url=server.http) as http:
        document = (await http.get("/openapi.json")).json()
    operations = [
        (path, verb, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
        if path.startswith(("/v1", "/tts", "/voices"))
    ]
    assert len(operations) > 15
    for path, verb, operation in operations:
        answers = operation["responses"]
        assert {"4XX", "5XX"} <= set(answers), (path, verb)
        assert "422" not in answers, "FastAPI's own shape is not what is answered"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
async def test_docs_pages_with_foreign_scripts_are_not_served(path: str) -> None:
    async with gateway() as server, httpx.AsyncClient(base_url=server.http) as http:
        assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize("name", ["%0d%0aX-Evil:%20a", "%E4%BD%A0", "%00", "a%7F"])
async def test_deepgram_endpoint_refuses_parameter_of_any_name(name: str) -> None:
    """The name is sent in a header, where it must not end the line or be invalid."""
    async with gateway() as server, httpx.AsyncClient(base_url=server.http) as http:
        answer = await http.post(f"/v1/speak?{name}=1", json={"text": "Hello."})
        assert answer.status_code == 400
        assert answer.json()["err_code"] == "UNSUPPORTED"
        assert answer.headers["dg-error"].isprintable()
        assert "x-evil" not in answer.headers
