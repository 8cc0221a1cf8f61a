"""The search page and its JSON interface: FastAPI over one index, made for long running.

Files are served by the id of their content, and only while they are unchanged; no request names a path. Only short GET
requests are accepted. Searches wait for each other in a queue of limited length; further ones get a 503. A slow
download of a video delays nobody else, and idle connections are closed (`connections`).
"""

import hashlib
import hmac
import ipaddress
import math
import mimetypes
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from allocembed import __version__
from allocembed.errors import AllocEmbedError, MissingDependency, SearchError
from allocembed.film import scale_colour
from allocembed.output.console import stderr
from allocembed.search.files import FileEntry, fingerprint, identity
from allocembed.search.index import LONGEST_QUERY, Hit, VideoIndex

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Query, Request, Response
    from fastapi import Path as PathParameter
    from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from allocembed.search.connections import KEEP_ALIVE, LimitedProtocol
except ImportError as error:
    raise MissingDependency("the search page", "FastAPI and uvicorn", "search") from error

WAITING = 16  # searches that may wait or run at the same time
COOKIE = "allocembed_token"
LOCAL = ["localhost", "127.0.0.1", "::1", "[::1]"]
HEADERS = {
    # The page contains its script and style; nothing is loaded from other sites.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' "
    "'unsafe-inline'; img-src 'self'; media-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
VideoId = Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$", description="Id of a video, from a search.")]
Top = Annotated[int, Query(ge=1, le=100, description="Most videos to return.")]
MinScore = Annotated[float | None, Query(ge=-1, le=1, description="Lowest score to return.")]


def make_app(index: VideoIndex, token: str | None = None) -> FastAPI:
    """The application over an index. With a token, each request must bring it."""
    # FastAPI's own pages load scripts from other sites; /openapi.json has the same content.
    app = FastAPI(title="AllocEmbed search", version=__version__, docs_url=None, redoc_url=None)
    queue, contents = _SearchQueue(WAITING), _Contents()
    secret = _digest(token or "")  # value of the cookie: plain ASCII, and not the token itself

    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        keys = (_digest(request.query_params.get("token") or _bearer(request)), request.cookies.get(COOKIE, ""))
        admitted = any(hmac.compare_digest(key.encode(), secret.encode()) for key in keys)
        if token and not admitted:
            detail = "a token is needed: open the page with ?token=…, or send it as a bearer header"
            response: Response = JSONResponse({"detail": detail}, status_code=401)
        else:
            response = await proceed(request)
            if token and request.query_params.get("token"):
                response.set_cookie(COOKIE, secret, httponly=True, samesite="strict")
        response.headers.update(HEADERS)
        return response

    if not token:
        # Without a token only this machine is served, and no web site that has a name for its address.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL)

    @app.exception_handler(AllocEmbedError)
    async def explain(request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=400)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return resources.files("allocembed.search").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/api/info")
    def info() -> dict[str, Any]:
        """Counts, tokens and settings of the index."""
        about = index.info()
        # Names only: visitors need not know the folders of this machine.
        return about | {name: str(about[name]).rstrip("/").split("/")[-1] for name in ("uri", "backbone", "allocator")}

    @app.get("/api/search")
    def search(
        q: Annotated[str, Query(max_length=LONGEST_QUERY, description="What the video shows, in a sentence.")],
        top: Top = 12,
        min_score: MinScore = None,
    ) -> list[dict[str, Any]]:
        """Videos that match a sentence, best first, each with its best moment."""
        with queue.place():
            return [_as_json(hit) for hit in index.search(q, top=top, min_score=min_score)]

    @app.get("/api/videos/{video}/similar")
    def similar(video: VideoId, top: Top = 12, min_score: MinScore = None) -> list[dict[str, Any]]:
        """Videos like one of the index, without that one."""
        segments = index.segments(video, "vector")
        if not segments:
            raise HTTPException(404, "there is no such video in the index")
        with queue.place():
            found = index.search_vector(segments[0].vector, top=top, min_score=min_score, without=video)
            return [_as_json(hit) for hit in found]

    @app.get("/api/videos/{video}")
    def describe(video: VideoId) -> dict[str, Any]:
        """Cost of a video, where its tokens went, and the times of its segments."""
        file = _file(index, video)
        whole, *windows = index.segments(video, "film")
        for chunk in whole.film["chunks"]:
            chunk["colour"] = "#{:02x}{:02x}{:02x}".format(*scale_colour(chunk["scale"]))
        return {
            "video": video,
            "name": Path(file.path).name,
            **{name: getattr(file, name) for name in ("duration", "width", "height")},
            "film": whole.film,
            "segments": [
                {name: getattr(each, name) for name in ("number", "start", "end", "cost")} for each in windows
            ],
            "cost": sum(segment.cost for segment in (whole, *windows)),
        }

    @app.get("/api/videos/{video}/film.jpg", response_class=Response)
    def strip(video: VideoId) -> Response:
        """One frame of each chunk of the whole video, side by side."""
        return _picture(index, video, 0)

    @app.get("/api/videos/{video}/segments/{number}.jpg", response_class=Response)
    def picture(video: VideoId, number: Annotated[int, PathParameter(ge=1, le=100_000)]) -> Response:
        """The frame of a segment with the most tokens."""
        return _picture(index, video, number)

    @app.get("/api/videos/{video}/file", response_class=FileResponse)
    def file(video: VideoId) -> FileResponse:
        """The video file; parts of it by range requests."""
        entry = _file(index, video)
        path = Path(entry.path)
        try:
            unchanged = contents.fingerprint(path) == video
        except OSError as error:
            raise HTTPException(410, "the file is gone from the disk; index again to forget it") from error
        if not unchanged:
            raise HTTPException(410, "the file has changed since it was indexed; index again")
        kind = mimetypes.guess_type(path.name)[0] or "video/mp4"
        return FileResponse(path, media_type=kind, headers={"Content-Disposition": "inline"})

    return app


def run(index: VideoIndex, host: str, port: int, token: str | None) -> None:
    """Serve until stopped."""
    if not token and not is_loopback(host):
        raise SearchError(f"{host} can be reached by other machines: add --token-file FILE, or leave --host out")
    index.embed_query("warm up")  # if the model cannot be loaded, this fails now and not at the first search
    server = _Server(server_config(index, host, port, token), token)
    with suppress(SystemExit):  # raised if the port is in use
        server.run()
    if not server.started:
        raise SearchError(f"cannot listen at {host}:{port}: choose another port with --port")


def server_config(index: VideoIndex, host: str, port: int, token: str | None) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        make_app(index, token),
        host=host,
        port=port,
        http=LimitedProtocol,
        ws="none",
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE,
        server_header=False,
    )


class _Server(uvicorn.Server):
    """Prints the address of the page when it is ready."""

    def __init__(self, config: uvicorn.Config, token: str | None) -> None:
        super().__init__(config)
        self.token = token

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            name = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            query = f"/?token={self.token}" if self.token else "/"
            stderr.print(f"http://{name}:{port}{query}   (Ctrl-C stops it)", soft_wrap=True, markup=False)


class _Contents:
    """Fingerprints of files, computed again when a file has another identity."""

    def __init__(self) -> None:
        self.known: dict[Path, tuple[tuple[int, ...], str]] = {}

    def fingerprint(self, path: Path) -> str:
        now = identity(path)
        before, content = self.known.get(path, ((), ""))
        if now != before:
            content = fingerprint(path)
            if identity(path) == now:  # else it is being written, and the fingerprint holds for no moment
                self.known[path] = now, content
        return content


class _SearchQueue:
    """One search runs, a few wait, further ones are refused."""

    def __init__(self, places: int) -> None:
        self.places = threading.BoundedSemaphore(places)
        self.turn = threading.Lock()

    @contextmanager
    def place(self) -> Iterator[None]:
        if not self.places.acquire(blocking=False):
            raise HTTPException(503, "too many searches at the same time; try again", headers={"Retry-After": "1"})
        try:
            with self.turn:
                yield
        finally:
            self.places.release()


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only.

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
    """A hit without the names of its folders, which visitors need not know."""
    return {**asdict(hit), "path": Path(hit.path).name, "score": 0.0 if math.isnan(hit.score) else hit.score}


def _file(index: VideoIndex, video: str) -> FileEntry:
    found = index.files_of([video])
    if video not in found:
        raise HTTPException(404, "there is no such video in the index")
    return found[video]


def _picture(index: VideoIndex, video: str, number: int) -> Response:
    picture = index.store.picture(video, number)
    if picture is None:
        raise HTTPException(404, "there is no such picture in the index")
    # The id stands for the content, so its pictures never change.
    headers = {"Cache-Control": "private, max-age=86400, immutable"}
    return Response(picture, media_type="image/jpeg", headers=headers)
