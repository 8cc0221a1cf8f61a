"""The page and its JSON: FastAPI over one index, made to be left running.

Files are served by the id of their content and only while they are what was indexed; no request names a path. Nothing
is taken but short GETs. Searches wait for one another in a short line; whoever would make it longer is told to come
back, and a slow reader of a video holds nobody up.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import math
import mimetypes
import threading
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from allocembed.backbones.base import BackboneError
from allocembed.film import scale_colour
from allocembed.options import stderr
from allocembed.search.errors import SearchError
from allocembed.search.index import LONGEST_QUERY, Hit, VideoIndex
from allocembed.search.store import INSTALL, quote

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Query, Request, Response
    from fastapi import Path as PathParameter
    from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
    from starlette.middleware.trustedhost import TrustedHostMiddleware
except ImportError as error:
    raise SearchError(f"the page needs FastAPI and uvicorn, which are not installed: {INSTALL}") from error

WAITING = 16  # searches that may wait or run at a time
CONNECTIONS = 256
COOKIE = "allocembed_token"
LOCAL = ["localhost", "127.0.0.1", "::1", "[::1]", "testserver"]
HEADERS = {
    # The page's script and style are in the page itself; nothing is ever loaded from elsewhere.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' "
    "'unsafe-inline'; img-src 'self'; media-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
VideoId = Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$", description="Id of a video, from a search.")]
Top = Annotated[int, Query(ge=1, le=100, description="How many videos at most.")]
MinScore = Annotated[float | None, Query(ge=-1, le=1, description="Leave out what scores lower.")]


def make_app(index: VideoIndex, token: str | None = None) -> FastAPI:
    """The application over an index; with a token, only those who bring it are let in."""
    # FastAPI's own pages load scripts from elsewhere; /openapi.json says the same without.
    app = FastAPI(title="AllocEmbed search", version=version("allocembed"), docs_url=None, redoc_url=None)
    line = _Line(WAITING)
    secret = _digest(token or "")  # what the cookie holds: it is plain ASCII, and it is not the token

    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        keys = (_digest(request.query_params.get("token") or _bearer(request)), request.cookies.get(COOKIE, ""))
        welcome = any(hmac.compare_digest(key.encode(), secret.encode()) for key in keys)
        if token and not welcome:
            said = "a token is needed: open the page with ?token=…, or send it as a bearer header"
            response: Response = JSONResponse({"detail": said}, status_code=401)
        else:
            response = await proceed(request)
            if token and request.query_params.get("token"):
                response.set_cookie(COOKIE, secret, httponly=True, samesite="strict")
        response.headers.update(HEADERS)
        return response

    if not token:
        # Without a token only this machine may ask, and no web page may through a name that points at it.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL)

    @app.exception_handler(BackboneError)
    @app.exception_handler(SearchError)
    async def explain(request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=400)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return resources.files("allocembed.search").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/api/info")
    def info() -> dict[str, Any]:
        """Counts, tokens and settings of the index."""
        return index.info()

    @app.get("/api/search")
    def search(
        q: Annotated[str, Query(max_length=LONGEST_QUERY, description="What the video shows, in a sentence.")],
        top: Top = 12,
        min_score: MinScore = None,
    ) -> list[dict[str, Any]]:
        """Videos that fit a sentence, best first, each with its best moment."""
        with line.place():
            return [_as_json(hit) for hit in index.search(q, top=top, min_score=min_score)]

    @app.get("/api/videos/{video}/similar")
    def similar(video: VideoId, top: Top = 12, min_score: MinScore = None) -> list[dict[str, Any]]:
        """Videos like one of the index, which is itself left out."""
        pieces = index.pieces(video, ("vector",))
        if not pieces:
            raise HTTPException(404, "there is no such video in the index")
        vector = np.asarray(pieces[0]["vector"], np.float32)
        with line.place():
            found = index.search_vector(vector, top=top, min_score=min_score, without=video)
            return [_as_json(hit) for hit in found]

    @app.get("/api/videos/{video}")
    def describe(video: VideoId) -> dict[str, Any]:
        """What a video cost, where its tokens went, and when its segments are."""
        file = _file(index, video)
        pieces = index.pieces(video, ("film",))
        film = json.loads(pieces[0]["film"])
        for chunk in film["chunks"]:
            chunk["colour"] = "#{:02x}{:02x}{:02x}".format(*scale_colour(chunk["scale"]))
        return {
            "video": video,
            "name": Path(file["path"]).name,
            **{name: file[name] for name in ("duration", "width", "height")},
            "film": film,
            "segments": [{name: piece[name] for name in ("number", "start", "end", "cost")} for piece in pieces[1:]],
            "cost": sum(piece["cost"] for piece in pieces),
        }

    @app.get("/api/videos/{video}/film.jpg", response_class=Response)
    def strip(video: VideoId) -> Response:
        """One frame for every chunk of the whole video, side by side."""
        return _picture(index, video, 0)

    @app.get("/api/videos/{video}/segments/{number}.jpg", response_class=Response)
    def picture(video: VideoId, number: Annotated[int, PathParameter(ge=1, le=100_000)]) -> Response:
        """The frame of a segment that got the most tokens."""
        return _picture(index, video, number)

    @app.get("/api/videos/{video}/file", response_class=FileResponse)
    def file(video: VideoId) -> FileResponse:
        """The video file itself; parts of it by range requests."""
        row = _file(index, video)
        path = Path(row["path"])
        try:
            status = path.stat()
        except OSError as error:
            raise HTTPException(410, "the file is gone from the disk; index again to forget it") from error
        if (status.st_size, status.st_mtime_ns) != (row["size"], row["changed"]):
            raise HTTPException(410, "the file has changed since it was indexed; index again")
        kind = mimetypes.guess_type(path.name)[0] or "video/mp4"
        return FileResponse(path, media_type=kind, headers={"Content-Disposition": "inline"})

    return app


def run(index: VideoIndex, host: str, port: int, token: str | None) -> None:
    """Serves until it is stopped."""
    if not token and not is_loopback(host):
        raise SearchError(f"{host} can be reached by others: give --token SECRET, or leave --host out")
    index.embed_query("warm up")  # an index whose model can't be had is refused now, not at the first search
    config = uvicorn.Config(
        make_app(index, token),
        host=host,
        port=port,
        log_level="warning",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=5,
        server_header=False,
    )
    server = _Server(config, token)
    with suppress(SystemExit):  # with which it ends where the port is taken
        server.run()
    if not server.started:
        raise SearchError(f"{host}:{port} can't be listened at: choose another with --port")


class _Server(uvicorn.Server):
    """Says where the page is once it can be had."""

    def __init__(self, config: uvicorn.Config, token: str | None) -> None:
        super().__init__(config)
        self.token = token

    async def startup(self, sockets: list | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            name = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            query = f"/?token={self.token}" if self.token else "/"
            stderr.print(f"http://{name}:{port}{query}   (Ctrl-C stops it)", soft_wrap=True, markup=False)


class _Line:
    """The line in front of the model: one search runs, a few wait, the rest are sent away."""

    def __init__(self, places: int) -> None:
        self.places = threading.BoundedSemaphore(places)
        self.turn = threading.Lock()

    @contextmanager
    def place(self):
        if not self.places.acquire(blocking=False):
            raise HTTPException(503, "too many searches at a time; try again", headers={"Retry-After": "1"})
        try:
            with self.turn:
                yield
        finally:
            self.places.release()


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _bearer(request: Request) -> str:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value if kind.lower() == "bearer" else ""


def _as_json(hit: Hit) -> dict[str, Any]:
    """A hit without its folders, which are nobody's business on a page."""
    return {**asdict(hit), "path": Path(hit.path).name, "score": 0.0 if math.isnan(hit.score) else hit.score}


def _file(index: VideoIndex, video: str) -> dict[str, Any]:
    found = index.files_of([video])
    if video not in found:
        raise HTTPException(404, "there is no such video in the index")
    return found[video]


def _picture(index: VideoIndex, video: str, number: int) -> Response:
    rows = index.store.rows(f"video = {quote(video)} and number = {number}", ["picture"])
    if not rows:
        raise HTTPException(404, "there is no such picture in the index")
    # The id is that of the content, so its pictures never change.
    kept = {"Cache-Control": "private, max-age=86400, immutable"}
    return Response(rows[0]["picture"], media_type="image/jpeg", headers=kept)
