"""One thing to embed, of any kind, and the vectors of a mixed list of them in order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

from allocembed.embedder import AllocEmbed, ImageEmbedding, TextEmbedding, VideoEmbedding
from allocembed.errors import ConfigError
from allocembed.integrations.sources import open_picture, open_source

Embedding: TypeAlias = VideoEmbedding | ImageEmbedding | TextEmbedding


@dataclass(frozen=True, eq=False)
class Request:
    """A text, a video or a picture, or one of the two with a text about it."""

    text: str | None = None
    video: Any = None
    """A path, the bytes of a file, or frames; also as a dictionary, see `open_source`."""
    picture: Any = None
    """A path, the bytes of a file, a Pillow image, or an array (H, W, 3) or (3, H, W)."""

    def __post_init__(self) -> None:
        if self.video is not None and self.picture is not None:
            raise ConfigError("cannot embed a video and a picture in one vector: give them as two inputs")
        if self.text is None and self.video is None and self.picture is None:
            raise ConfigError("cannot embed an empty input: give a text, a video or a picture")
        if self.text is not None and not isinstance(self.text, str):
            raise ConfigError(f"cannot embed a {type(self.text).__name__} as a text: give a string")


def embed_requests(
    embedder: AllocEmbed, requests: Sequence[Request], instruction: str | None = None
) -> list[Embedding]:
    """Embeddings in the order of the requests. Each kind is embedded as by the method of `AllocEmbed` for it."""
    found: dict[int, Embedding] = {}
    places = range(len(requests))
    texts = [i for i in places if requests[i].video is None and requests[i].picture is None]
    videos = [i for i in places if requests[i].video is not None]
    pictures: dict[str | None, list[int]] = {}
    for i in places:
        if requests[i].picture is not None:
            pictures.setdefault(requests[i].text, []).append(i)
    if texts:
        made = embedder.encode_texts([requests[i].text or "" for i in texts], instruction=instruction)
        found |= zip(texts, made, strict=True)
    for text, own in pictures.items():
        sources = [open_picture(requests[i].picture) for i in own]
        found |= zip(own, embedder.encode_images(sources, text, instruction=instruction), strict=True)
    if videos:
        with ExitStack() as stack:
            sources = [open_source(requests[i].video, embedder, stack) for i in videos]
            questions = [requests[i].text for i in videos]
            found |= zip(videos, embedder.encode_videos(sources, questions, instruction=instruction), strict=True)
    return [found[i] for i in places]
