"""Limits of the server: work at the same time, and files and addresses that it trusts."""

import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import HTTPException

from allocembed.search.contents import FileGone, TrustedContents


class WorkQueue:
    """Some jobs run, a few wait, further ones are refused with a 503."""

    def __init__(self, places: int, what: str, workers: int = 1) -> None:
        self.places, self.what = threading.BoundedSemaphore(places), what
        self.turn = threading.BoundedSemaphore(workers)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Wait for a turn and hold it while the block runs."""
        if not self.places.acquire(blocking=False):
            raise HTTPException(503, f"too many {self.what} at the same time; try again", headers={"Retry-After": "1"})
        try:
            with self.turn:
                yield
        finally:
            self.places.release()


class FileContents(TrustedContents):
    """Contents that are checked as elsewhere; a changed file is answered with a 410."""

    def check(self, path: Path, video: str) -> None:
        """Answer with a 410 unless the file has the content that was indexed."""
        try:
            super().check(path, video)
        except FileGone as error:
            raise HTTPException(410, str(error)) from error


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
