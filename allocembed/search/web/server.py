"""The search page and its JSON interface: FastAPI over one index, made for long running.

Files are served by the id of their content, and only while they are unchanged; no request names a path. Requests are
short GETs, and one POST that brings a picture. Searches wait for each other in a queue of limited length; further ones
get a 503. A slow download of a video delays nobody else, and idle connections are closed (`connections`).
"""

import hashlib
import hmac
import mimetypes
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from allocembed import __version__
from allocembed.errors import AllocEmbedError, MissingDependency, SearchError
from allocembed.film import scale_colour
from allocembed.output.console import complain, stderr
from allocembed.search.contents import NoSuchVideo, file_of, path_of, segments_of
from allocembed.search.filters import Filters
from allocembed.search.index import VideoIndex
from allocembed.search.places import places_of, without_folders

try:
    import uvicorn
    from fastapi import Depends, FastAPI, HTTPException, Request, Response
    from fastapi import Path as PathParameter
    from fastapi import Query as Parameter
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import FileResponse, JSONResponse
    from starlette.middleware.trustedhost import TrustedHostMiddleware
except ImportError as error:
    raise MissingDependency("the search page", "FastAPI and uvicorn", "search") from error

from allocembed.search.web.answers import Answers, MinScore, SearchRequest, Top, chosen, search_request
from allocembed.search.web.clips import check_clip, clip_response, is_uncut, whole_response
from allocembed.search.web.connections import KEEP_ALIVE, limit_connections
from allocembed.search.web.limits import FileContents, WorkQueue, is_loopback
from allocembed.search.web.pictures import page_file, poster
from allocembed.search.web.uploads import Uploads, read_body, shrink

WAITING = 16  # searches that may wait or run at the same time
CUTS = 8  # clips that may wait or be cut at the same time
LOOKS_AT_ONCE = 2  # closer looks at a moment that may wait or run at the same time
MOST_LINES_OF_PAGE = 20_000  # of one video: a day of speech
COOKIE = "allocembed_token"
LOCAL = ["localhost", "127.0.0.1", "::1", "[::1]"]
HEADERS = {
    # Nothing is loaded from other sites. `blob:` is the picture that the visitor has just chosen.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
VideoId = Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$", description="Id of a video, from a search.")]
Seconds = Annotated[float, Parameter(ge=0, le=1e6, allow_inf_nan=False)]


def make_app(index: VideoIndex, token: str | None = None, *, host: str = "127.0.0.1") -> FastAPI:
    """The application over an index. With a token, each request must bring it. Without one, it must name this machine:
    as `host`, or in another usual way."""
    # FastAPI's own pages load scripts from other sites; /openapi.json has the same content.
    app = FastAPI(title="AllocEmbed search", version=__version__, docs_url=None, redoc_url=None)
    _guard(app, index, token, host)
    _serve_page(app)
    _serve_searches(app, index)
    _serve_videos(app, index)
    return app


def _guard(app: FastAPI, index: VideoIndex, token: str | None, host: str) -> None:
    """Ask for the token, refuse foreign names of this machine, and turn errors into sentences."""
    secret = _digest(token or "")  # value of the cookie: plain ASCII, and not the token itself

    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        keys = (_digest(request.query_params.get("token") or _bearer(request)), request.cookies.get(COOKIE, ""))
        admitted = any(hmac.compare_digest(key.encode(), secret.encode()) for key in keys)
        if token and not admitted:
            response = _ask_for_token(request.url.path)
        else:
            response = await proceed(request)
            if token and request.query_params.get("token"):
                response.set_cookie(COOKIE, secret, httponly=True, samesite="strict")
        response.headers.update(HEADERS)
        return response

    if not token:
        # Without a token only this machine is served, and no web site that has a name for its address.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL, host])

    @app.exception_handler(AllocEmbedError)
    async def explain(request: Request, error: Exception) -> Response:
        if isinstance(error, NoSuchVideo):
            return JSONResponse({"detail": str(error)}, status_code=404)
        detail = await run_in_threadpool(_for_visitors, index, error, request.path_params.get("video"))
        return JSONResponse({"detail": detail}, status_code=400)


def _serve_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    def part(name: str) -> Response:
        return page_file(name)


def _serve_searches(app: FastAPI, index: VideoIndex) -> None:
    answers, queue, uploads = Answers(index), WorkQueue(WAITING, "searches"), Uploads()
    # A closer look takes longer than a search, so few may stand in its way.
    contents, looks = FileContents(), WorkQueue(LOOKS_AT_ONCE, "closer looks")

    @app.get("/api/info")
    def info() -> dict[str, Any]:
        """Counts, tokens and settings of the index, and the folders that can be searched."""
        return answers.info()

    @app.get("/api/search")
    def search(wanted: Annotated[SearchRequest, Depends(search_request)]) -> list[dict[str, Any]]:
        """Videos that match sentences, best first, each with its best moment."""
        with queue.place():
            return answers.search(wanted)

    @app.post("/api/search/image", openapi_extra={"requestBody": {"content": {"image/*": {}}, "required": True}})
    async def search_image(
        request: Request, wanted: Annotated[SearchRequest, Depends(search_request)]
    ) -> list[dict[str, Any]]:
        """Videos that show what a picture shows, which is the body of the request: JPEG, PNG or WebP."""

        def find(body: bytes) -> list[dict[str, Any]]:
            with queue.place():
                return answers.search(wanted, shrink(body))

        with uploads.place():
            headers = request.headers
            body = await read_body(headers.get("content-type"), headers.get("content-length"), request.stream())
            return await run_in_threadpool(find, body)

    @app.get("/api/videos/{video}/similar")
    def similar(
        video: VideoId, wanted: Annotated[Filters, Depends(chosen)], top: Top = 12, min_score: MinScore = None
    ) -> list[dict[str, Any]]:
        """Videos like one of the index, without that one."""
        segments = segments_of(index, video, "vector")
        with queue.place():
            return answers.similar(video, segments[0].vector, top, min_score, wanted)

    @app.get("/api/videos/{video}/moment")
    def moment(video: VideoId, query: Annotated[str, Parameter(pattern="^[0-9a-f]{16}$")]) -> dict[str, Any]:
        """The place in a video of the thing that a search looked for, by the `query` of its hits."""
        entry = file_of(index, video)
        contents.check(path_of(entry), video)
        with looks.place(), queue.place():
            return answers.moment(entry, query)


def _serve_videos(app: FastAPI, index: VideoIndex) -> None:
    contents, cutting = FileContents(), WorkQueue(CUTS, "downloads", workers=2)

    @app.get("/api/videos/{video}")
    def describe(video: VideoId) -> dict[str, Any]:
        """Cost of a video, where its tokens went, and the times of its segments."""
        file = file_of(index, video)
        whole, *windows = segments_of(index, video, "film")
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

    @app.get("/api/videos/{video}/lines")
    def lines(video: VideoId) -> list[dict[str, Any]]:
        """Lines that are said in a video, with times in seconds; the first ones if there are very many."""
        file_of(index, video)
        return [asdict(line) for line in index.lines.lines_of(video)[:MOST_LINES_OF_PAGE]]

    @app.get("/api/videos/{video}/film.jpg", response_class=Response)
    def strip(video: VideoId) -> Response:
        """One frame of each chunk of the whole video, side by side."""
        return _picture(index.store.picture(video, 0))

    @app.get("/api/videos/{video}/poster.jpg", response_class=Response)
    def cover(video: VideoId) -> Response:
        """The frame of the whole video with the most tokens."""
        segments = index.segments(video, "film", "picture")
        return _picture(poster(segments[0]) if segments else None)

    @app.get("/api/videos/{video}/segments/{number}.jpg", response_class=Response)
    def picture(video: VideoId, number: Annotated[int, PathParameter(ge=1, le=100_000)]) -> Response:
        """The frame of a segment with the most tokens."""
        return _picture(index.store.picture(video, number))

    @app.get("/api/videos/{video}/file", response_class=FileResponse)
    def file(video: VideoId) -> FileResponse:
        """The video file; parts of it by range requests."""
        path = path_of(file_of(index, video))
        contents.check(path, video)
        kind = mimetypes.guess_type(path.name)[0] or "video/mp4"
        # The browser asks each time, because the file may have changed since.
        headers = {"Content-Disposition": "inline", "Cache-Control": "private, no-cache"}
        return FileResponse(path, media_type=kind, headers=headers)

    @app.get("/api/videos/{video}/clip", response_class=Response)
    def clip(video: VideoId, start: Seconds, end: Seconds) -> Response:
        """A moment of the video as a file, copied without re-encoding; it begins at the keyframe before `start`.

        A GIF comes whole."""
        entry = file_of(index, video)
        contents.check(path_of(entry), video)
        if is_uncut(entry):
            return whole_response(entry)
        check_clip(entry, start, end)
        with cutting.place():
            return clip_response(entry, start, end)


def run(index: VideoIndex, host: str, port: int, token: str | None, *, show: str | None = None) -> None:
    """Serve until stopped. `show` is a query of the page, such as "?q=a+dog", with which a browser is opened."""
    if not token and not is_loopback(host):
        raise SearchError(f"{host} can be reached by other machines: add --token-file FILE, or leave --host out")
    with _listen(host, port) as listener:  # before the model is loaded, which takes long
        _ = index.embedder  # pictures need all of the model
        index.embed_query("warm up")  # if the model cannot be loaded, this fails now and not at the first search
        _Server(server_config(index, host, port, token), token, show).run([listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        cause = error.strerror or error
        raise SearchError(
            f"cannot listen at {host}:{port} ({cause}): choose another port with --port, or leave --host out"
        ) from error


def server_config(index: VideoIndex, host: str, port: int, token: str | None) -> uvicorn.Config:
    """Settings of the web server."""
    config = uvicorn.Config(
        make_app(index, token, host=host),
        host=host,
        port=port,
        http="h11",
        ws="none",
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE,
        server_header=False,
    )
    return limit_connections(config)


class _Server(uvicorn.Server):
    """Prints the address of the page when it is ready, and opens it if that is wanted."""

    def __init__(self, config: uvicorn.Config, token: str | None, show: str | None) -> None:
        super().__init__(config)
        self.token, self.show = token, show

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            query = f"?token={quote(self.token)}" if self.token else ""
            stderr.print(f"{_url(self.config.host, port)}{query}   (Ctrl-C stops it)", soft_wrap=True, markup=False)
            if self.show is not None:
                here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.config.host, self.config.host)
                wanted = query + (self.show.replace("?", "&", 1) if query else self.show)
                # In a thread, because a text browser would only return when it is closed.
                threading.Thread(target=_open_browser, args=[_url(here, port) + wanted], daemon=True).start()


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _open_browser(address: str) -> None:
    try:
        opened = webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        stderr.print("no browser could be opened: open the address yourself", markup=False)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _ask_for_token(path: str) -> Response:
    """A page for visitors, who may have a bookmark without the token; JSON for programs."""
    if path == "/":
        return page_file("token.html", 401)
    detail = "a token is needed: open the page with ?token=…, or send it as a bearer header"
    return JSONResponse({"detail": detail}, status_code=401)


def _bearer(request: Request) -> str:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value if kind.lower() == "bearer" else ""


def _for_visitors(index: VideoIndex, error: Exception, video: str | None) -> str:
    """The message of an error, without the folders of this machine. The whole of it is printed if that is more."""
    try:
        places = places_of(index, video)
    except AllocEmbedError:  # the index cannot be read
        places = places_of(index)
    detail = without_folders(str(error), places)
    if detail != str(error):
        complain("error:", str(error))
    return detail


def _picture(content: bytes | None) -> Response:
    if content is None:
        raise HTTPException(404, "there is no such picture in the index")
    # The id stands for the content, so its pictures never change.
    headers = {"Cache-Control": "private, max-age=86400, immutable"}
    return Response(content, media_type="image/jpeg", headers=headers)
