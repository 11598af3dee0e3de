"""The asynchronous client: one connection, and the speeches that share it.

::

    async with Client("http://127.0.0.1:8000") as client:
        async with client.speak("Hello there.") as speech:
            async for chunk in speech:
                play(chunk.data)
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import json
import ssl
import time
from collections.abc import AsyncIterable, Collection, Mapping
from typing import Any, Literal, Self, Unpack
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    ProxyError,
)
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from talkwire_client import protocol as wire
from talkwire_client.errors import (
    ClientError,
    ConnectionLostError,
    NoServerError,
    ProtocolError,
    RefusedError,
    ServerError,
    SlowReaderError,
)
from talkwire_client.speech import (
    CANCEL_TIMEOUT_S,
    OnWords,
    Speech,
    SpeechOptions,
    context_create,
)

DEFAULT_URL = f"ws://127.0.0.1:8000{wire.PATH}"
#: How long a speech that is not read may block others on its connection.
SLOW_READER_TIMEOUT_S = 5.0
#: How long closing waits for the server to close too. Nothing more is read then.
_CLOSE_TIMEOUT_S = 1.0
#: Codes that answer messages for an open context, and so never ``context.create``.
_LATE_CODES = (wire.ErrorCode.UNKNOWN_CONTEXT, wire.ErrorCode.CONTEXT_CLOSED)
#: A second of float32 audio at 48 kHz is 192 kB; a chunk is a few seconds at most.
_MAX_MESSAGE_BYTES = 16 << 20


class Client:
    """A connection to a Talkwire server.

    Enter it (``async with``) to connect. Leaving it closes the connection and all open speeches.
    For ``wss://`` to another machine, the proxy in ``HTTPS_PROXY`` is used unless ``NO_PROXY`` has
    the host.

    Speeches that are open at the same time share the connection. Read them at the same time, each
    in a task of its own: while one has MAX_QUEUED_CHUNKS unread chunks (for Opus and with
    ``frame_ms``, beyond those that ``max_lead_ms`` holds), nothing is read from the connection. If
    another speech waits for SLOW_READER_TIMEOUT_S because of it, the unread one is cancelled, and
    its reader gets SlowReaderError.

    Args:
        url: The server's address: ``http(s)://`` means ``ws(s)://``, a bare ``host:port`` means
            ``ws://``, and the path may be left out.
        api_key: An API key, if the server requires one. A redirect to another origin, such as from
            ``ws`` to ``wss``, does not get it.
        headers: Further headers of the handshake, for the address's own origin only.
        ssl_context: For ``wss://`` with a certificate of your own authority.
        open_timeout_s: Timeout of connecting.
        framing: ``json`` for connections that cannot carry binary messages.

    Attributes:
        going_away: The server's notice that it will close, or None. Open no more speeches after it.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        open_timeout_s: float = 10.0,
        framing: Literal["header", "json"] = "header",
    ) -> None:
        self.going_away: wire.GoingAway | None = None
        self._url = url
        self._ssl = ssl_context
        self._open_timeout_s = open_timeout_s
        self._headers = dict(headers or {})
        self._api_key = api_key
        self._framing = framing
        self._socket: ClientConnection | None = None
        #: The server's greeting.
        self._server: wire.SessionCreated | None = None
        #: Reads the connection.
        self._reader: asyncio.Task[None] | None = None
        #: Speeches that the server may send messages for, by context id.
        self._speeches: dict[str, Speech] = {}
        #: The same by their number in binary headers.
        self._handles: dict[int, Speech] = {}
        #: Of generated context ids.
        self._ids = itertools.count(1)
        #: The server's error about the connection.
        self._notice: ServerError | None = None
        #: How the reader ended.
        self._ended: ClientError | None = None
        #: An error in this client itself.
        self._fault: Exception | None = None

    def __repr__(self) -> str:
        """Describe the connection, without what may be a secret in its address."""
        scheme, _, rest = self._url.rpartition("://")
        place = rest.partition("?")[0].rpartition("@")[2]
        where = f"{scheme}://{place}" if scheme else place
        if self.is_open:
            return f"<Client {where}: connected, model {self.server.model}>"
        return f"<Client {where}: {'not connected' if self._socket is None else 'closed'}>"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect. Entering the client does the same.

        Raises:
            ClientError: The API key has characters that no header can hold.
            NoServerError: The address is not a server's, or nothing answers at it with a trusted
                certificate, perhaps because of the environment's proxy.
            RefusedError: The handshake was answered with another HTTP status than 101.
            ServerError: The server sent an error, for example when it is full.
            ConnectionLostError: The server closed the connection at once.
            ProtocolError: It is not a Talkwire server.
            RuntimeError: The client has connected before.
            ValueError: There is an ``ssl_context``, and the address is not a ``wss://`` one.
        """
        if self._socket is not None:
            raise RuntimeError("a client connects once; make another one")
        headers = self._headers
        if (key := self._api_key) is not None:
            if not (key.isascii() and key.isprintable()):  # such as the end of a file's line
                raise ClientError("the API key has characters that no key has")
            headers = headers | {"Authorization": f"Bearer {key}"}
        socket = await _open_socket(self._url, headers, self._ssl, self._open_timeout_s)
        try:
            self._server = await _receive_greeting(socket, self._open_timeout_s)
        except BaseException:
            await socket.close()
            raise
        self._socket = socket
        self._reader = asyncio.create_task(self._read(socket))
        if self._framing != "header":
            try:
                await self.send(wire.SessionConfigure(self._framing))
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Close the connection. Leaving the client does the same. Closing twice does nothing.

        Raises:
            Exception: An error in the client itself, if one ended its reading.
        """
        if self._socket is None or self._reader is None:
            return
        try:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        finally:
            await self._socket.close()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    @property
    def server(self) -> wire.SessionCreated:
        """The server's capabilities: voices, sample rates, limits. RuntimeError before that."""
        if self._server is None:
            raise RuntimeError("not connected: async with Client(...) as client")
        return self._server

    @property
    def is_open(self) -> bool:
        """Whether the client is connected. A lost connection is not opened again."""
        return self._server is not None and self._ended is None

    def speak(
        self,
        text: str | AsyncIterable[str] | None = None,
        *,
        on_words: OnWords | None = None,
        **options: Unpack[SpeechOptions],
    ) -> Speech:
        """Speak a text.

        Args:
            text: A whole text, or an iterator over its parts, which are sent as they arrive. None:
                call the speech's ``append`` and ``end`` yourself.
            on_words: Called with words and their times, after their audio has arrived; asks for
                timestamps. An exception in it ends the iteration over the audio.
            **options: See SpeechOptions.

        Returns:
            The speech; enter it to begin.

        Raises:
            TypeError: There is no option of that name, or JSON has no such value.
            ValueError: There is no such encoding, a text is not Unicode, or the id is not one.
        """
        if on_words is not None:
            options.setdefault("timestamps", True)
        create = context_create(f"c{next(self._ids)}", options)
        return Speech(self, create, text, on_words)

    async def ping(self) -> float:
        """Measure the round trip of a WebSocket ping.

        Returns:
            Seconds.

        Raises:
            ClientError: The connection is gone, as in ``send``.
            RuntimeError: The client is not connected.
        """
        try:
            return await (await self._connected().ping())
        except ConnectionClosed as error:
            raise self._lost(error) from error

    # -- for speeches

    async def send(self, message: wire.ClientMessage) -> None:
        """Send a message of the protocol; ``Speech`` has a method for each.

        Raises:
            ClientError: The connection is gone: the ServerError or ProtocolError that ended it, or
                else ConnectionLostError.
            RuntimeError: The client is not connected.
        """
        if self._ended is not None:
            raise self._ended._copy()
        try:
            await self._connected().send(wire.encode_message(message))
        except ConnectionClosed as error:
            raise self._lost(error) from error

    async def register(self, speech: Speech) -> None:
        """Pass all later messages about the speech's context to it.

        Raises:
            ClientError: Its options, such as a clip, are longer than the server's messages may be.
            ValueError: Another speech with that context id is open.
        """
        size = len(wire.encode_message(speech._create).encode())
        max_bytes = self.server.limits.max_message_bytes
        if size > max_bytes:  # the server would close the connection, and end all its speeches
            raise ClientError(
                f"the options of a speech have {size} bytes, and may have {max_bytes}"
            )
        earlier = self._speeches.get(speech.context_id)
        if earlier is not None and earlier.cancelled is not None:  # only its metrics are missing
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    await earlier._wait(earlier._forgotten)
        if speech.context_id in self._speeches:
            raise ValueError(f"context id in use: {speech.context_id}")
        self._speeches[speech.context_id] = speech

    # -- internal

    def _connected(self) -> ClientConnection:
        if self._socket is None:
            raise RuntimeError("not connected: async with Client(...) as client")
        return self._socket

    def _lost(self, error: ConnectionClosed) -> ClientError:
        return self._notice._copy() if self._notice else _connection_lost(error)

    async def _read(self, socket: ClientConnection) -> None:
        error: ClientError = ConnectionLostError(None, "the client was closed")
        code = 1000
        try:
            while True:
                data = await socket.recv()
                if isinstance(data, bytes):
                    await self._on_binary(data, time.monotonic())
                else:
                    await self._on_message(_decode(data), time.monotonic())
        except ConnectionClosed as closed:
            error = self._lost(closed)
        except ProtocolError as wrong:
            error, code = wrong, 1002
        except Exception as fault:
            error, self._fault = ConnectionLostError(None, "the client failed"), fault
        finally:  # in any case: no task may wait for a connection that is not read
            self._ended = error
            for speech in list(self._speeches.values()):
                speech._on_lost(error._copy())
                self._forget(speech)
            await socket.close(code)

    async def _on_binary(self, message: bytes, arrived_s: float) -> None:
        try:
            header = wire.AudioHeader.unpack(message)
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        await self._on_audio(message[wire.HEADER_BYTES :], header, arrived_s)

    async def _on_audio(self, data: bytes, header: wire.AudioHeader, arrived_s: float) -> None:
        speech = self._handles.get(header.handle)
        if speech is None:
            raise ProtocolError(f"audio for the unknown handle {header.handle}")
        if speech._is_full:
            await _wait_for_room(speech, self._speeches.values(), self._connected())
        speech._on_audio(data, header, arrived_s)

    async def _on_message(self, message: wire.ServerMessage | None, arrived_s: float) -> None:
        if isinstance(message, wire.Audio):
            flags = wire.AudioFlags(message.flags)
            header = wire.AudioHeader(
                message.handle, message.sequence, message.sample_offset, flags
            )
            await self._on_audio(message.audio, header, arrived_s)
        elif isinstance(message, wire.GoingAway):
            self.going_away = message
        elif isinstance(message, wire.Error):
            self._on_error(message)
        elif (speech := self._speeches.get(getattr(message, "context_id", ""))) is not None:
            self._on_speech_message(speech, message)

    def _on_error(self, message: wire.Error) -> None:
        error = ServerError(message)
        if message.context_id is None:
            self._notice = error  # the reason, if the connection closes now
        elif (speech := self._speeches.get(message.context_id)) is not None:
            if speech._handle is not None:
                speech.errors.append(error)
            elif message.code not in _LATE_CODES:  # otherwise of an earlier context of that id
                speech._on_lost(error)
                self._forget(speech)

    def _on_speech_message(self, speech: Speech, message: wire.ServerMessage | None) -> None:
        match message:
            case wire.ContextCreated(handle=handle, warning=warning):
                self._handles[handle] = speech
                speech._on_created(handle, warning)
            case wire.ContextWarning():
                speech.markup_warnings.append(message)
            case wire.AudioStarted():
                speech.started = message
            case wire.Timestamps(words=words):
                speech._on_timestamps(words)
            case wire.FlushDone(flush_id=flush_id):
                speech._on_flush_done(flush_id)
            case wire.Metrics():
                speech.metrics = message
                if speech.cancelled is not None:
                    self._forget(speech)
            case wire.ContextDone():
                speech._on_done(message)
                self._forget(speech)
            case wire.ContextCancelled():  # its metrics are still to come
                speech._on_cancelled(message)

    def _forget(self, speech: Speech) -> None:
        self._speeches.pop(speech.context_id, None)
        if speech._handle is not None and self._handles.get(speech._handle) is speech:
            del self._handles[speech._handle]
        speech._forgotten.set()


async def _wait_for_room(
    slow: Speech, speeches: Collection[Speech], socket: ClientConnection
) -> None:
    """Wait until ``slow`` has room. Meanwhile the connection is not read, which slows the server.

    ``slow`` is given up if one of ``speeches`` waits too long. Returns at once if the socket is
    closed: the rest of its data is bounded, and all speeches need to learn of its end.
    """
    room = asyncio.ensure_future(slow._chunks.wait_for_room())
    closed = asyncio.ensure_future(socket.wait_closed())
    first = asyncio.FIRST_COMPLETED
    timeout_s = SLOW_READER_TIMEOUT_S
    try:
        while not (await asyncio.wait([room, closed], timeout=timeout_s, return_when=first))[0]:
            if any(speech._is_awaited for speech in speeches):
                why = f"context {slow.context_id} was not read while another one waited"
                with contextlib.suppress(ClientError):  # will be read too
                    await slow._give_up(SlowReaderError(why))
                return
    finally:
        room.cancel()
        closed.cancel()


def _connection_lost(error: ConnectionClosed) -> ConnectionLostError:
    close = error.rcvd or error.sent  # why this side closed it, such as a ping timeout
    reason = close.reason if close else ""
    return ConnectionLostError(error.rcvd.code if error.rcvd else None, reason)


def _decode(data: str) -> wire.ServerMessage | None:
    try:
        return wire.decode_server_message(data)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


#: Schemes that people copy from the page's or OpenAI's address.
_SCHEMES = {"http": "ws", "https": "wss"}


def _websocket_url(url: str) -> str:
    """Return the address of the protocol's WebSocket for any of a server's addresses."""
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    return urlunsplit(
        parts._replace(
            scheme=_SCHEMES.get(parts.scheme, parts.scheme),
            path=wire.PATH if parts.path in ("", "/") else parts.path,
        )
    )


def _proxy(uri: WebSocketURI) -> Literal[True] | None:
    """Return websockets' option to use the proxy that the environment names, if any: for TLS to
    other machines, since a proxy of a company reaches neither this machine nor its network.
    """
    try:
        is_here = ipaddress.ip_address(uri.host).is_loopback
    except ValueError:
        is_here = uri.host == "localhost" or uri.host.endswith(".localhost")
    return True if uri.secure and not is_here else None


class _Connect(connect):
    """websockets' connection, which passes no header on to another origin. Keys may be in headers
    of any name, of which websockets leaves out some.
    """

    def process_redirect(self, exc: Exception) -> Exception | str:
        """See websockets, which replaces the headers if the origin changes."""
        before = self.additional_headers
        result = super().process_redirect(exc)
        if self.additional_headers is not before:
            self.additional_headers = {}
        return result


async def _open_socket(
    url: str, headers: dict[str, str], ssl_context: ssl.SSLContext | None, timeout_s: float
) -> ClientConnection:
    """Connect. Raises NoServerError, RefusedError or ProtocolError."""
    try:
        address = _websocket_url(url)
        uri = parse_uri(address)
    except (InvalidURI, ValueError) as error:  # an invalid port or host
        raise NoServerError(f"not a WebSocket address: {url}") from error
    if ssl_context is not None and not uri.secure:  # websockets would name another argument
        raise ValueError(f"ssl_context is for wss:// only, and the address is {url}")
    tls: dict[str, Any] = {} if ssl_context is None else {"ssl": ssl_context}
    opening: _Connect | None = None
    try:
        opening = _Connect(
            address,
            subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
            additional_headers=headers,
            open_timeout=timeout_s,
            close_timeout=_CLOSE_TIMEOUT_S,
            max_size=_MAX_MESSAGE_BYTES,
            compression=None,
            proxy=_proxy(uri),
            **tls,
        )
        return await opening
    except InvalidStatus as error:
        response = error.response
        retry = response.headers.get("Retry-After", "")
        retry_after_s = float(retry) if retry.isdecimal() else None
        refusal = _refusal_reason(response)
        if response.status_code == 401 and headers and opening and not opening.additional_headers:
            refusal += f" (the key is not passed on by a redirect to {opening.uri[:500]})"
        raise RefusedError(response.status_code, refusal, retry_after_s) from error
    except ProxyError as error:  # an InvalidHandshake
        raise NoServerError(f"no server answers at {url}: {error}") from error
    except InvalidProxy as error:  # its own text has the password
        raise NoServerError(f"the environment's proxy for {url} is none: {error.msg}") from error
    except ImportError as error:  # of python-socks
        raise NoServerError(f"no server answers at {url}: {error}") from error
    except InvalidHandshake as error:
        raise ProtocolError(f"no WebSocket at {url}: {error}") from error
    except UnicodeError as error:  # a host name with an empty or overlong part
        raise NoServerError(f"not a WebSocket address: {url}") from error
    except ssl.SSLError as error:  # such as a certificate that this machine does not trust
        reason = getattr(error, "verify_message", None) or error.reason or error
        raise NoServerError(f"no server answers at {url} with usable TLS: {reason}") from error
    except (OSError, TimeoutError) as error:
        raise NoServerError(f"no server answers at {url}") from error
    except (InvalidURI, ValueError) as error:
        redirect = _redirect_before(error)
        if redirect is None:  # a mistake in the arguments
            raise
        where = redirect.response.headers["Location"][:500]
        raise RefusedError(redirect.response.status_code, f"it redirects to {where}") from error


def _refusal_reason(response: Response) -> str:
    """Return why a handshake was refused, in one line. A proxy's error page is for browsers, and
    says no more than the status.
    """
    body = response.body or b""
    kind = "".join(response.headers.get_all("Content-Type")[:1]).partition(";")[0].strip().lower()
    if kind == "text/html":
        return response.reason_phrase
    reason = body.decode(errors="replace")
    if kind == "application/json":
        with contextlib.suppress(ValueError, KeyError, TypeError):  # not the server's own
            error = json.loads(body)["error"]
            reason = f"{error['code']}: {error['message']}"
    return " ".join(reason[:500].split()) or response.reason_phrase


def _redirect_before(error: BaseException) -> InvalidStatus | None:
    """Return the answer whose redirect caused ``error``: it leads to no WebSocket, but for example
    to a login page, or from ``ws://`` to ``https://``.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InvalidStatus):
        cause = cause.__context__
    return cause


async def _receive_greeting(socket: ClientConnection, timeout_s: float) -> wire.SessionCreated:
    """Receive the server's first message.

    Raises ServerError if it is an error, ConnectionLostError or ProtocolError.
    """
    try:
        async with asyncio.timeout(timeout_s):
            data = await socket.recv()
    except TimeoutError as error:
        raise ProtocolError("the server did not say session.created") from error
    except ConnectionClosed as error:
        raise _connection_lost(error) from error
    message = _decode(data) if isinstance(data, str) else None
    if isinstance(message, wire.Error):
        raise ServerError(message)
    if not isinstance(message, wire.SessionCreated):
        raise ProtocolError("the server did not begin with session.created")
    return message
