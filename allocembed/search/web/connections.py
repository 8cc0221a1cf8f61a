"""Connections of the server: those without a request are closed in time and give way to others.

uvicorn limits the time between two requests only. A connection that sends nothing, or its headers one by one, would
hold its place for ever.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # from the connection, or the first byte of a later request, to its last byte
KEEP_ALIVE = 5  # seconds between two requests
CONNECTIONS = 256
PER_PEER = 64  # connections of one address; all visitors have the same one behind a proxy


class LimitedProtocol(H11Protocol):
    """HTTP with a time limit for headers and a limit of connections, in all and for each peer.

    Over a limit, the oldest connection without a request is closed, first those that never had one. If all have one,
    the new connection gets a 503.
    """

    refused = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.since = time.monotonic()
        self._watch()
        open_now = [each for each in self.connections if isinstance(each, LimitedProtocol) and each.is_open]
        peers = [each for each in open_now if each.address == self.address]
        for group, limit in ((peers, PER_PEER), (open_now, CONNECTIONS)):
            accepted = [each for each in group if not each.refused]
            if len(accepted) > limit and not self._replace_idle(accepted):
                self.refused, self.app = True, _refuse
        refused = [each for each in open_now if each.refused]
        if len(refused) > PER_PEER:
            self._replace_idle(refused)

    @property
    def address(self) -> str:
        """The peer's address without its port."""
        return self.client[0] if self.client else ""

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    @property
    def is_busy(self) -> bool:
        """Whether a complete request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _replace_idle(self, group: Iterable["LimitedProtocol"]) -> bool:
        """Close one connection of a group that is not busy, other than this one; return whether there was one."""
        idle = [each for each in group if each is not self and each.is_open and not each.is_busy]
        if idle:
            min(idle, key=lambda each: (each.cycle is not None, each.since)).transport.abort()
        return bool(idle)

    def _watch(self) -> None:
        """Start the time limit of a request that is not complete. Further bytes of it do not extend the limit."""
        if self.is_busy:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if not self.is_busy:
            self.transport.abort()


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a 503. The connection ends, so that the next one may find a place."""
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"detail": "too many connections; try again"}'})
