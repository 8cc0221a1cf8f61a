"""Files of the page itself, and the one frame that stands for a whole video."""

import io
from importlib import resources

from fastapi import HTTPException
from fastapi.responses import Response
from PIL import Image

from allocembed.search.store import EmbeddedSegment

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = {
    file.name: file.read_bytes()
    for file in resources.files("allocembed.search.web").joinpath("page").iterdir()
    if file.name.endswith(tuple(KINDS))
}


def page_file(name: str, status: int = 200) -> Response:
    """A file of the page by its name."""
    if name not in PAGE:
        raise HTTPException(404, "the page has no such part")
    kind = KINDS[name[name.rindex(".") :]]
    # Another version of the package may be served from the same address next time.
    headers = {"Cache-Control": "no-cache"}
    return Response(PAGE[name], status, headers=headers, media_type=f"{kind}; charset=utf-8")


def poster(whole: EmbeddedSegment) -> bytes:
    """The frame of the chunk with the most tokens, cut out of the strip of a whole video."""
    chunks = whole.film["chunks"]
    best = max(range(len(chunks)), key=lambda chunk: chunks[chunk]["tokens"])
    with Image.open(io.BytesIO(whole.picture)) as strip:
        width = strip.width // len(chunks)
        made = io.BytesIO()
        strip.crop((best * width, 0, (best + 1) * width, strip.height)).save(made, format="JPEG", quality=90)
    return made.getvalue()
