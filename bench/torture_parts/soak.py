"""Many clients of one server, slow ones among them: every request is answered, and memory stays flat."""

import http.client
import io
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from torture_parts.common import (
    INDEX_OPTIONS,
    Nursery,
    Outcome,
    Settings,
    address,
    environment,
    judge,
    save_model,
    save_videos,
)

FULL = 10_000
CLIENTS = 50
SLOW = 5  # clients that send or read slowly
GROWTH = 1.3  # of the server's memory after the warm-up
TRIES = 40  # before a request counts as lost
UPLOADS = 0.1  # share of the requests that bring a picture, or what pretends to be one
REFUSALS = (400, 413, 415, 422)
WORDS = ("a red car", "", "ein Hund", "🦊", "a" * 300, "42", "the end of a long day")


def run(settings: Settings) -> Outcome:
    outcome, total = Outcome("soak"), settings.count(FULL)
    place, model = settings.folder / "index", save_model(settings.folder / "model")
    save_videos(settings.folder / "videos", 6)
    with Nursery(settings.folder / "logs") as nursery:
        command = ("index", settings.folder / "videos", "--to", place, "--backbone", model, *INDEX_OPTIONS)
        judge(outcome, *nursery.run(*command), "index")
    log = settings.folder / "serve.log"
    words = [sys.executable, "-m", "allocembed", "serve", str(place), "--port", "0"]
    with log.open("w") as file:
        server = subprocess.Popen(words, stdout=file, stderr=file, env=environment())
        try:
            found = address(log, lambda: server.poll() is None)
            if found is None:
                outcome.fault("crashes", f"the server did not start: {log.read_text()[-400:]}")
                return outcome
            Soak(outcome, *found, server.pid, settings.seed).go(total)
            if server.poll() is not None:
                outcome.fault("crashes", f"the server ended with {server.returncode}")
            if "Traceback" in log.read_text():
                outcome.fault("crashes", f"the server printed a traceback: {log.read_text()[-600:]}")
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                outcome.fault("hangs", "the server did not stop at SIGINT")
                server.kill()
    return outcome


class Soak:
    """The clients of one server."""

    def __init__(self, outcome: Outcome, host: str, port: int, pid: int, seed: int) -> None:
        self.outcome, self.host, self.port, self.pid, self.seed = outcome, host, port, pid, seed
        self.lock, self.statuses = threading.Lock(), Counter[str]()
        self.answers: dict[str, bytes] = {}
        self.left = 0
        self.videos: list[str] = []

    def go(self, total: int) -> None:
        """Send all requests: a warm-up of a tenth first, after which memory is measured."""
        body = self.get("/api/search?q=warm")
        self.get("/api/search/image", picture())  # loads the vision tower, before memory is measured
        self.videos = [hit["video"] for hit in json.loads(body or b"[]")]
        if not self.videos:
            self.outcome.fault("lost", "the first search found nothing")
            return
        warm = max(CLIENTS, total // 10)
        self.send(warm)
        before = resident(self.pid)
        self.send(max(total - warm, 1))
        after = resident(self.pid)
        self.outcome.notes.update(self.statuses)
        self.outcome.notes["MiB after warm-up"] = before >> 20
        self.outcome.notes["MiB at the end"] = after >> 20
        if after > GROWTH * before:
            self.outcome.fault("over_budget", f"memory grew from {before >> 20} to {after >> 20} MiB")

    def send(self, count: int) -> None:
        self.left = count
        threads = [threading.Thread(target=self.client, args=(number,), daemon=True) for number in range(CLIENTS)]
        deadline = time.monotonic() + 60 + count
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                self.outcome.fault("hangs", "a client did not get its answers")

    def client(self, number: int) -> None:
        source = random.Random(f"{self.seed} {number} {self.left}")
        while True:
            with self.lock:
                if self.left <= 0:
                    return
                self.left -= 1
                self.outcome.runs += 1
            if source.random() < UPLOADS:
                self.upload(source)
                continue
            path = self.path(source)
            if number < SLOW:
                self.crawl(path, source)
            else:
                self.get(path)

    def path(self, source: random.Random) -> str:
        video = source.choice(self.videos)
        paths = ("/", "/api/info", f"/api/videos/{video}", f"/api/videos/{video}/film.jpg", "/api/videos/x/file")
        more = (f"/api/videos/{video}/similar", f"/api/videos/{video}/segments/1.jpg", f"/api/videos/{video}/file")
        searches = tuple(f"/api/search?q={quote(words)}" for words in WORDS)
        return source.choice((*paths, *more, *searches))

    def upload(self, source: random.Random) -> None:
        """Search by a picture: a healthy, damaged, huge or empty one, or no picture at all."""
        healthy = picture(source.randrange(5))
        kinds = ("image/jpeg", "image/png", "image/webp")
        damaged = bytearray(healthy)
        for _ in range(source.choice((1, 20))):
            damaged[source.randrange(len(damaged))] ^= 1 << source.randrange(8)
        size = struct.pack(">II", source.choice((1, 60_000)), 60_000)
        header = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + size + b"\x08\x02\x00\x00\x00"
        body = source.choice(
            (healthy, bytes(damaged), healthy[: source.randrange(len(healthy))], source.randbytes(3000), b"", header)
        )
        kind = source.choice(kinds) if source.random() < 0.9 else "text/plain"
        self.get("/api/search/image", body, kind)

    def get(self, path: str, body: bytes | None = None, kind: str = "image/jpeg") -> bytes | None:
        """The answer to a request, repeated while the server says that it is busy. With a body, it is a POST."""
        cause = ""
        for attempt in range(TRIES):
            connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
            try:
                headers = {} if body is None else {"Content-Type": kind}
                connection.request("GET" if body is None else "POST", path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            except TimeoutError:
                self.fault("hangs", f"{path}: no answer in 60 s")
                return None
            except (OSError, http.client.HTTPException) as error:
                cause = f"{type(error).__name__}: {error}"
                self.count("connections refused")
                time.sleep(0.05 * (attempt + 1))
                continue
            finally:
                connection.close()
            self.count(f"× {response.status}")
            if response.status in (429, 503) and (wait := response.headers.get("Retry-After")):
                # As asked, but not all at the same moment.
                time.sleep(float(wait) * random.uniform(0.5, 1.5))
                continue
            if response.status >= 500:
                self.fault("crashes", f"{path}: {response.status} {answer[:200]!r}")
            elif body is not None:
                self.count(f"pictures {'read' if response.status == 200 else 'refused'}")
                if response.status != 200 and response.status not in REFUSALS:
                    self.fault("wrong", f"{path}: {response.status} {answer[:200]!r}")
            elif path.startswith("/api/search"):
                self.compare(path, answer)
            return answer
        self.fault("lost", f"{path}: refused {TRIES} times {cause}")
        return None

    def compare(self, path: str, body: bytes) -> None:
        with self.lock:
            first = self.answers.setdefault(path, body)
        if first != body:
            self.fault("wrong", f"{path}: another answer than before")

    def crawl(self, path: str, source: random.Random) -> None:
        """Send a request in small pieces, or read the answer in small pieces, or leave in between."""
        self.count("slow")
        try:
            with socket.create_connection((self.host, self.port), timeout=30) as connection:
                request = f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n".encode()
                for start in range(0, len(request), 16):
                    connection.sendall(request[start : start + 16])
                    time.sleep(source.uniform(0, 0.1))
                    if source.random() < 0.02:
                        return
                for _ in range(200):
                    if not connection.recv(64) or source.random() < 0.02:
                        return
                    time.sleep(0.005)
        except TimeoutError:
            self.fault("hangs", f"{path}: no answer to a slow client in 30 s")
        except OSError:
            self.count("slow ones cut off")

    def count(self, name: str) -> None:
        with self.lock:
            self.statuses[name] += 1

    def fault(self, kind: str, example: str) -> None:
        with self.lock:
            self.outcome.fault(kind, example)


def picture(number: int = 0) -> bytes:
    """A small JPEG."""
    from PIL import Image

    made = io.BytesIO()
    Image.new("RGB", (64, 48), (number * 40, 90, 160)).save(made, format="JPEG")
    return made.getvalue()


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024
