"""Limits on connections, between the sockets and uvicorn: those without a request end in time and give way to others.

uvicorn limits the time between two requests only. A connection that sends nothing, or its headers one by one, would
hold its place for ever.

Whoever is turned away gets an answer. The connection then stays open without a place until the visitor has sent the
rest: if it were closed at once, the system would reset it, and the answer would be lost.
"""

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn

HEADER_SECONDS = 10.0  # from the connection, or the first byte of a later request, to its last byte
KEEP_ALIVE = 5  # seconds between two requests
CONNECTIONS = 256
PER_PEER = 64  # connections of one address; all visitors have the same one behind a proxy
LEAVING = 512  # connections that are turned away and not closed yet

TOO_MANY = "503 Service Unavailable", "too many connections; try again"
TOO_SLOW = "408 Request Timeout", "the request was not complete in time; try again"


def limit_connections(config: uvicorn.Config) -> uvicorn.Config:
    """Put the limits between the sockets, the HTTP protocol and the application of a server."""
    config.load()
    connections = Connections(config.http_protocol_class, config.loaded_app)
    config.http_protocol_class = cast(type[asyncio.Protocol], connections.protocol)
    config.loaded_app = connections.answer
    return config


class Connections:
    """The connections of a server. Their number is limited, in all and for each peer.

    Over a limit, the oldest connection without a request is turned away, first those that never had one. If all have
    one, the new connection is turned away.
    """

    def __init__(self, http: type[asyncio.Protocol], app: Any) -> None:
        self._http, self._app = http, app
        self._placed: dict[tuple[Any, ...], Connection] = {}
        self._leaving: dict[Connection, None] = {}

    def protocol(self, **arguments: Any) -> "Connection":
        """The protocol of a new connection; the arguments are those of uvicorn's own."""
        return Connection(self, partial(self._http, **arguments))

    def place(self, new: "Connection") -> bool:
        """Give a connection a place; return whether there was one."""
        for limit, address in ((PER_PEER, new.peer[0]), (CONNECTIONS, None)):
            group = [each for each in self._placed.values() if address in (None, each.peer[0])]
            if len(group) >= limit:
                idle = [each for each in group if not each.is_busy]
                if not idle:
                    return False
                min(idle, key=lambda each: (each.was_busy, each.since)).turn_away(*TOO_MANY)
        self._placed[new.peer] = new
        return True

    def leave(self, connection: "Connection") -> None:
        """Take back the place of a connection that is turned away. Too many of them would use up the descriptors."""
        self._placed.pop(connection.peer, None)
        self._leaving[connection] = None
        if len(self._leaving) > LEAVING:
            next(iter(self._leaving)).transport.abort()

    def forget(self, connection: "Connection") -> None:
        """Forget a connection that is closed."""
        self._leaving.pop(connection, None)
        if self._placed.get(connection.peer) is connection:
            del self._placed[connection.peer]

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application, and note which connection waits for an answer to a complete request."""
        connection = self._placed.get(tuple(scope.get("client") or ()))
        if connection is None:
            return await self._app(scope, receive, send)

        async def receive_part() -> Any:
            message = await receive()
            if not message.get("more_body"):
                connection.begin()
            return message

        names = {name for name, value in scope["headers"] if value != b"0"}
        if not names & {b"content-length", b"transfer-encoding"}:
            connection.begin()
        try:
            return await self._app(scope, receive_part, send)
        finally:
            connection.end()


class Connection(asyncio.Protocol):
    """A connection. All that arrives goes to uvicorn's protocol, or nowhere when the connection is turned away."""

    transport: asyncio.Transport
    peer: tuple[Any, ...]
    is_busy = was_busy = False
    """Whether a complete request is being answered, and whether there ever was one."""

    def __init__(self, connections: Connections, http: Callable[[], asyncio.Protocol]) -> None:
        self._connections, self._make_http, self._http = connections, http, asyncio.Protocol()
        self._timer: asyncio.TimerHandle | None = None
        self._has_next = False
        """Whether bytes of the next request arrived before this one was answered."""
        self.since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer = (transport.get_extra_info("peername") or ("", id(self)))[:2]  # none if it is closed already
        if self._connections.place(self):
            self._http = self._make_http()
            self._http.connection_made(transport)
            self._start_timer(self.turn_away, *TOO_SLOW)
        else:
            self.turn_away(*TOO_MANY)

    def data_received(self, data: bytes) -> None:
        if self.is_busy:
            self._has_next = True
        elif self._timer is None:  # further bytes of a request do not extend its time
            self._start_timer(self.turn_away, *TOO_SLOW)
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._connections.forget(self)
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def begin(self) -> None:
        """Note that a request is complete."""
        self.is_busy = self.was_busy = True
        self._stop_timer()

    def end(self) -> None:
        """Note that it is answered. The time of a request that has begun meanwhile counts from now."""
        self.is_busy, self.since = False, time.monotonic()
        if self._has_next and self._timer is None:
            self._start_timer(self.turn_away, *TOO_SLOW)
        self._has_next = False

    def turn_away(self, status: str, detail: str) -> None:
        """Answer without a request. Read on until the visitor closes the connection, but not for long."""
        http, self._http = self._http, asyncio.Protocol()
        http.connection_lost(ConnectionAbortedError())
        self._connections.leave(self)
        body = json.dumps({"detail": detail})
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nretry-after: 1\r\nconnection: close"
        self.transport.write(f"HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}".encode())
        self.transport.write_eof()
        self.transport.resume_reading()
        self._start_timer(self.transport.abort)

    def _start_timer(self, act: Callable[..., None], *arguments: str) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(HEADER_SECONDS, act, *arguments)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
