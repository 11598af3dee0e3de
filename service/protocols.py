"""The protocols that the service speaks: their names, and the headers of their keys."""

from __future__ import annotations

#: Names in logs and error tables, and every value of the metrics' label ``protocol``.
PROTOCOLS = (
    "native",
    "openai",
    "elevenlabs",
    "cartesia",
    "deepgram",
    "vllm-omni",
    "vapi",
    "fish",
    "livekit",
    "wyoming",
)
#: Headers that hold a bare key, by the name of their OpenAPI security scheme.
KEY_HEADERS = {
    "xi_api_key": "xi-api-key",
    "x_api_key": "X-API-Key",
    "x_vapi_secret": "x-vapi-secret",
}
