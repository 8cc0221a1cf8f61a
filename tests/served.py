"""A real server over an index, in a thread of the test, and plain requests to it."""

import http.client
import json
import threading
import time
from contextlib import contextmanager
from urllib.parse import quote

import uvicorn

from allocembed.search.web.server import server_config


class Client:
    """Sends requests as they are, without tidying paths up."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port, self.host = port, host

    def get(
        self, path: str, headers: dict | None = None, method: str = "GET", body: bytes | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        connection.request(method, path, body, headers=headers or {})
        response = connection.getresponse()
        response.body = response.read()
        connection.close()
        return response

    def json(self, path: str) -> object:
        response = self.get(path)
        assert response.status == 200, response.body
        return json.loads(response.body)

    def search(self, words: str, **more: object) -> list[dict]:
        return self.json(f"/api/search?q={quote(words)}" + "".join(f"&{name}={value}" for name, value in more.items()))


@contextmanager
def serving(index, token: str | None = None, host: str = "127.0.0.1"):
    """The client of a server that runs as long as the block."""
    server = uvicorn.Server(server_config(index, host, 0, token))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.02)
    try:
        yield Client(server.servers[0].sockets[0].getsockname()[1], host)
    finally:
        server.should_exit = True
        thread.join()
