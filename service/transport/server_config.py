"""uvicorn's settings of a listener, and its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # none is public
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from service.settings import Settings
from service.transport.connection_limits import ConnectionLimits
from service.transport.http_protocol import HttpProtocol
from service.transport.tls_handshake import TlsHandshake
from service.transport.websocket_protocol import WebSocketProtocol

log = logging.getLogger(__name__)

#: Connections that may wait in addition to ``max_connections``: probes, metrics, the page.
SPARE = 64
#: Seconds after a response without anything new in which a connection is closed.
_KEEP_ALIVE_S = 5
_NO_PASSPHRASE = "none"


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, with TLS done by TlsHandshake instead of the listener."""

    limits: ConnectionLimits
    #: When the certificate that is used expires, in seconds since 1970; None without TLS.
    expires_at: float | None = None

    def load(self) -> None:
        """See uvicorn.Config. Raises OSError if the certificate or its key cannot be used."""
        super().load()
        self.http_protocol_class = self._protocol  # type: ignore[assignment]
        if self.ssl is not None:
            self._take(self.ssl)
        self.ssl = None

    def _protocol(self, **uvicorns: Any) -> asyncio.Protocol:
        """Create the protocol of a connection."""
        inner = partial(HttpProtocol, limits=self.limits, **uvicorns)
        if self.limits.tls is None:
            return inner()
        connections = uvicorns["server_state"].connections
        return TlsHandshake(self.limits, self.limits.tls, inner, connections)

    def _take(self, context: ssl.SSLContext) -> None:
        """Use a certificate that was read."""
        self.limits.tls, self.expires_at, expiry = context, None, "unknown"
        with contextlib.suppress(OSError, ValueError):  # a part that Python cannot decode
            expiry = str(_test_decode_cert(str(self.ssl_certfile))["notAfter"])
            self.expires_at = ssl.cert_time_to_seconds(expiry)
        log.info("the certificate was read", extra={"expires": expiry})

    def reload_certificate(self) -> None:
        """Read the certificate and its key again. If they cannot be used, the old ones stay.

        For the passphrase of an encrypted key OpenSSL would ask the terminal, and block until
        somebody typed one, so it gets a wrong one.
        """
        if self.limits.tls is None:
            return
        try:
            fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            fresh.load_cert_chain(str(self.ssl_certfile), self.ssl_keyfile, _NO_PASSPHRASE)
        except OSError as error:  # ssl.SSLError is one
            reason = self.certificate_fault(error)
            log.error("the certificate cannot be used", extra={"reason": reason})
            return
        self._take(fresh)

    def certificate_fault(self, error: OSError) -> str:
        """Return why the certificate or its key cannot be used, for operators."""
        certificate, key = str(self.ssl_certfile), str(self.ssl_keyfile or self.ssl_certfile)
        if getattr(error, "reason", "") in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
            return f"{key} is not the key of {certificate}"
        for file, kind in ((certificate, "CERTIFICATE"), (key, "PRIVATE KEY")):
            try:
                held = Path(file).read_bytes()
            except OSError as unread:
                return f"cannot read {file}: {unread.strerror}"
            if f"{kind}-----".encode() not in held:
                return f"{file} has no {kind.lower()} in PEM"
        if b"ENCRYPTED" in held:  # OpenSSL only says that an argument is invalid
            return f"the key in {key} is encrypted"
        return f"{error.strerror or error} ({certificate}, {key})"


def server_config(app: ASGIApp, settings: Settings, grace_s: int) -> ServerConfig:
    """Return uvicorn's settings for ``app``: all waits bounded, and TLS if there is a certificate.
    At the end, connections that are still open are cut after ``grace_s``.
    """
    most_waiting = settings.connections() + SPARE
    limits = ConnectionLimits(settings.handshake_s, most_waiting, settings.slow_consumer_s)
    config = ServerConfig(
        app,
        ws=WebSocketProtocol,  # HttpProtocol creates it
        log_config=None,
        ws_max_size=settings.max_message_bytes,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    config.limits = limits
    return config
