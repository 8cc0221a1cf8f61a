"""Messages for others than the owner of this machine: the names of files and models, without their folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from allocembed.allocators.registry import split_looks
from allocembed.paths import absolute

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex

# Folders of an absolute path that nobody has named, as far as no space is in them; addresses of the web are none.
FOLDERS = re.compile(r"(?<![\w:/.])(?:/[^\s/:;,'\"()]+)+/(?=[^\s/])")


def without_folders(text: str, paths: Iterable[str]) -> str:
    """A text with the last part of each path in place of the path, and without the folders around these paths.

    >>> without_folders("cannot cut /my films/a.mp4, /my films/a.srt: no space in /tmp/x/y", ["/my films/a.mp4"])
    'cannot cut a.mp4, a.srt: no space in y'
    >>> without_folders("see https://example.org/a/b", [])
    'see https://example.org/a/b'
    >>> without_folders("a and/or b. See /c d/e f.", [".", "..", "/c d/e f"])
    'a and/or b. See e f.'
    """
    names: dict[str, str] = {}
    for path in paths:
        whole = str(absolute(path))
        # Errors of LanceDB name paths without the first slash, and as in an address.
        for form in (path, whole, os.path.realpath(path), whole.lstrip("/"), quote(whole), quote(whole).lstrip("/")):
            folder, slash, last = form.rstrip("/").rpartition("/")
            if slash and last not in ("", ".", ".."):
                names[form] = PurePath(whole).name
                if folder.startswith("/"):
                    names[f"{folder}/"] = ""
    for form in sorted(names, key=len, reverse=True):
        text = text.replace(form, names[form])
    return FOLDERS.sub("", text)


def places_of(index: VideoIndex, video: str | None = None) -> list[str]:
    """Paths that errors of an index may name: its own, those of its models, and those of the files of a video."""
    config = index.settings.config
    models = [path for path in (config.backbone, split_looks(config.allocator)[0]) if Path(path).is_absolute()]
    files = [file.path for file in index.store.files_of([video])] if video else []
    return [index.store.uri, *models, *files]
