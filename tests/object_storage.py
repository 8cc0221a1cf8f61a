"""Object storage on this machine: moto's server as a process of its own, and a proxy that counts, or drops headers."""

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
HOP_BY_HOP = ("connection", "transfer-encoding", "keep-alive")


class ObjectServer:
    """moto's S3, started and stopped as a context manager."""

    def __init__(self) -> None:
        with socket.create_server((HOST, 0)) as free:
            self.port = free.getsockname()[1]

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its clients."""
        return client_variables(self.port)

    def make_bucket(self, name: str) -> str:
        """Make a bucket; return its address."""
        request(self.port, "PUT", f"/{name}")
        return f"s3://{name}"

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]
        # Without the environment's own credentials, and without a proxy.
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError):
                socket.create_connection((HOST, self.port), timeout=1).close()
                return self
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("moto's server does not start")
            time.sleep(0.05)

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()


def client_variables(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
    }


def request(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    """One plain request; moto checks no signatures."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request(method, path, body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]}")
    return content


def upload(port: int, folder: Path, prefix: str) -> None:
    """Put all files of a folder under BUCKET/PREFIX."""
    for path in sorted(folder.iterdir()):
        request(port, "PUT", f"/{prefix}/{path.name}", path.read_bytes())


class Proxy:
    """Forwards to a server, counts the bytes of answers, and drops the headers that are named."""

    def __init__(self, port: int, dropped: tuple[str, ...] = ()) -> None:
        self.target, self.dropped = port, dropped
        self.sent, self.requests = 0, 0
        self.port = 0

    @property
    def variables(self) -> dict[str, str]:
        return client_variables(self.port)


@contextmanager
def proxy_of(port: int, *dropped: str) -> Iterator[Proxy]:
    """A proxy in front of the server at a port, which drops these headers of requests."""
    proxy = Proxy(port, tuple(name.lower() for name in dropped))

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in proxy.dropped}
            connection = http.client.HTTPConnection(HOST, proxy.target, timeout=60)
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in (*HOP_BY_HOP, "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            connection.close()
            proxy.sent += len(content)
            proxy.requests += 1

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 (names of the base class)

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Forward)
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
