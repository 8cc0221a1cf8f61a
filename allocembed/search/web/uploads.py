"""Pictures that visitors send: read up to a limit, checked before they are decoded, and made small."""

import io
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from fastapi import HTTPException
from PIL import Image
from starlette.requests import ClientDisconnect

from allocembed.video.images import pillow_to_rgb

KINDS = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
LARGEST_UPLOAD = 16 * 2**20  # bytes of a picture as it is sent
PIXELS = 50_000_000  # a phone's photo has 12 to 50 million; decoded, these are 200 MB at most
LONGEST_SIDE = 20_000  # pixels on a side: rows cost memory too, and a file of a few bytes may state millions
READ_SIDE = 2048  # pixels: more than any model reads
UPLOADS = 8  # bodies in memory at the same time


class Uploads:
    """Reads pictures out of requests, a few at a time."""

    def __init__(self) -> None:
        self.places = threading.BoundedSemaphore(UPLOADS)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places; answer with a 503 if there is none."""
        if not self.places.acquire(blocking=False):
            raise HTTPException(503, "too many uploads at the same time; try again", headers={"Retry-After": "1"})
        try:
            yield
        finally:
            self.places.release()


async def read_body(kind: str | None, length: str | None, parts: AsyncIterator[bytes]) -> bytes:
    """The body of a request, if it says that it is a picture and is not too large."""
    # A page of another site cannot send these types without asking first, and this server never agrees.
    if (kind or "").partition(";")[0].strip().lower() not in KINDS:
        raise HTTPException(415, f"cannot read this picture: send one of {', '.join(KINDS)}")
    too_large = HTTPException(413, f"the picture has more than {LARGEST_UPLOAD // 2**20} MB: make it smaller")
    if length is not None and length.isdigit() and int(length) > LARGEST_UPLOAD:
        raise too_large
    body = bytearray()
    try:
        async for part in parts:
            body += part
            if len(body) > LARGEST_UPLOAD:
                raise too_large
    except ClientDisconnect as error:  # nobody reads this answer
        raise HTTPException(400, "the upload was broken off") from error
    return bytes(body)


def shrink(data: bytes) -> bytes:
    """A picture of at most `READ_SIDE` pixels on its longer side; the same bytes if it is one already.

    The size that the header states is checked before anything is decoded, so that a small file cannot fill the memory.
    """
    try:
        with Image.open(io.BytesIO(data), formats=list(KINDS.values())) as picture:
            width, height = picture.size
            if width * height > PIXELS or max(width, height) > LONGEST_SIDE:
                raise HTTPException(413, f"the picture has {width} × {height} pixels: make it smaller")
            if max(width, height) <= READ_SIDE:
                picture.load()
                return data
            picture.draft("RGB", (READ_SIDE, READ_SIDE))  # a JPEG is decoded at a fraction of its size
            # Made small first, because conversions hold several copies.
            upright = Image.fromarray(pillow_to_rgb(_made_small(picture)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise HTTPException(400, "cannot read the picture: it is damaged, or no JPEG, PNG or WebP") from error
    made = io.BytesIO()
    upright.save(made, format="BMP")  # without compression: it does not leave this process
    return made.getvalue()


def _made_small(picture: Image.Image) -> Image.Image:
    """A copy of at most `READ_SIDE` pixels on its longer side, with the metadata that says how it is turned."""
    palette = picture.mode in ("P", "1")
    colours = picture.convert("RGBA" if picture.has_transparency_data else "RGB") if palette else picture
    scale = READ_SIDE / max(picture.size)
    size = [max(1, round(side * scale)) for side in picture.size]
    # Sixteen-bit grey has no filter for reducing.
    gap = None if picture.mode.startswith("I") else 2
    small = colours.resize((size[0], size[1]), Image.Resampling.BICUBIC, reducing_gap=gap)
    small.info = picture.info
    return small
