"""The lock of an index in object storage: an object that says who writes, renewed as long as its owner lives.

Object storage has no locks, but can refuse to write over an object that exists or has changed. A lease is written only
on such conditions. One that is not renewed for a while expires: a run that has watched it that long may take it. Clocks
of different machines are compared only for leases that are long past.
"""

from __future__ import annotations

import json
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self
from uuid import uuid4

from allocembed.errors import SearchError
from allocembed.remote.objects import ConditionFailed, StorageFailure, Version, create, delete, read, replace

LEASE = "indexing.lease"
LEASE_SECONDS = 20.0  # without a renewal, after which a lease may be taken over
RENEWALS = 4  # in that time
SKEW = 60.0  # seconds that the clocks of two machines may differ
LOST_LEASE = (
    "the lease of the index at {} was lost, because it could not be renewed in time or another run took it over: run "
    "the same command again; what was indexed before is kept"
)
NO_CONDITIONS = (
    "cannot keep an index at {}: its server ignores the condition of a write ({}), so that two writers would lose each "
    "other's videos without an error; use a server that has conditional writes, such as Amazon S3, Google Cloud "
    "Storage or MinIO, or a folder"
)


class LeaseHeld(SearchError):  # noqa: N818 (named for what happened)
    """Another run holds the lease."""


@dataclass(frozen=True)
class LeaseRecord:
    """The content of the object."""

    owner: str
    """Empty: nobody holds it."""
    machine: str
    expires: float
    """Seconds since 1970, by the owner's clock."""

    @classmethod
    def parse(cls, content: bytes) -> Self:
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):  # somebody else's object: it is watched like any other
            return cls("unknown", "an unknown machine", float("inf"))

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Lease:
    """Holds the lease of an index between `acquire` and `release`, and renews it in a thread."""

    def __init__(self, uri: str) -> None:
        self.uri, self.address, self.owner = uri, f"{uri}/{LEASE}", uuid4().hex
        self._stop, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._renew, name="allocembed-lease", daemon=True)
        self._version = Version("")
        self._renewed = time.monotonic()

    def acquire(self) -> None:
        """Take the lease. Raise LeaseHeld if its owner renews it, and SearchError without conditional writes."""
        check_conditions(self.uri)
        watched, since = None, time.monotonic()
        while True:
            try:
                self._version = create(self.address, self._record().encode())
                break
            except ConditionFailed:
                pass
            try:
                content, version = read(self.address)
                found = LeaseRecord.parse(content)
                if watched is None:
                    watched, since = version, time.monotonic()
                past = found.expires + SKEW < time.time() or time.monotonic() - since > LEASE_SECONDS
                if found.owner == self.owner:  # an answer was lost on its way, and the request repeated
                    self._version = version
                    break
                if version != watched and found.owner:
                    raise LeaseHeld(
                        f"another run, on {found.machine}, is indexing into {self.uri}: wait until it is done"
                    )
                if past or not found.owner:
                    self._version = replace(self.address, self._record().encode(), version)
                    break
            except (FileNotFoundError, ConditionFailed):
                continue
            time.sleep(LEASE_SECONDS / RENEWALS / 10)
        self._renewed = time.monotonic()
        self._thread.start()

    def check(self) -> None:
        """Raise SearchError if the lease is not held any more. Whoever writes asks first."""
        if self._lost.is_set() or time.monotonic() - self._renewed > LEASE_SECONDS:  # the process may have been asleep
            raise SearchError(LOST_LEASE.format(self.uri))

    def release(self) -> None:
        """Give the lease back, if it is still held."""
        self._stop.set()
        self._thread.join()
        if not self._lost.is_set():
            free = LeaseRecord("", platform.node(), 0.0)
            with suppress(ConditionFailed, FileNotFoundError, StorageFailure):  # it expires by itself
                replace(self.address, free.encode(), self._version)

    def _record(self) -> LeaseRecord:
        return LeaseRecord(self.owner, platform.node(), time.time() + LEASE_SECONDS)

    def _renew(self) -> None:
        try:
            self._keep_renewing()
        finally:
            if not self._stop.is_set():
                self._lost.set()

    def _keep_renewing(self) -> None:
        while not self._stop.wait(LEASE_SECONDS / RENEWALS):
            begun = time.monotonic()
            try:
                self._version = replace(self.address, self._record().encode(), self._version)
                self._renewed = begun
            except StorageFailure:
                pass  # the network may come back
            except (ConditionFailed, FileNotFoundError):
                if not self._is_ours():
                    self._lost.set()
            if time.monotonic() - self._renewed > LEASE_SECONDS:
                self._lost.set()
            if self._lost.is_set():
                return

    def _is_ours(self) -> bool:
        """Whether the lease has our name after all: an answer may be lost on its way, and the request repeated."""
        try:
            content, version = read(self.address)
        except StorageFailure:
            return True  # unknown; the next renewal tells
        except FileNotFoundError:
            return False
        self._version = version
        return LeaseRecord.parse(content).owner == self.owner


def check_conditions(uri: str) -> None:
    """Raise SearchError if the server of an index does not refuse writes whose condition is not met."""
    address = f"{uri}/indexing.probe-{uuid4().hex}"
    try:
        first = create(address, b"1")
        if not _refuses(lambda: create(address, b"2")):
            raise SearchError(NO_CONDITIONS.format(uri, "If-None-Match"))
        replace(address, b"3", first)
        if not _refuses(lambda: replace(address, b"4", first)):
            raise SearchError(NO_CONDITIONS.format(uri, "If-Match"))
    finally:
        delete(address)


def _refuses(write: Callable[[], object]) -> bool:
    try:
        write()
    except ConditionFailed:
        return True
    return False
