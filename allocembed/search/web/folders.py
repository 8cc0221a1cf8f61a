"""Names of folders for visitors: relative to what the indexed files have in common, never absolute paths."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING

from allocembed.remote.objects import is_remote

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex

MOST_FOLDERS = 500  # names in the list
LIST_SECONDS = 30.0  # after which the list is made again; later if that takes long


class FolderNames:
    """The folders of an index under names that may be shown."""

    def __init__(self, index: VideoIndex) -> None:
        self.index = index
        self._lock, self._due = threading.Lock(), 0.0
        self._names: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def names(self) -> dict[str, str]:
        """Folders by name, in order."""
        with self._lock:
            if (started := time.monotonic()) >= self._due:
                paths = [file.path for file in self.index.files() if not file.error and not is_remote(file.path)]
                self._names = folder_names(paths)
                self._folders = {folder: name for name, folder in self._names.items()}
                taken = time.monotonic() - started
                self._due = started + max(LIST_SECONDS, 100 * taken)
            return self._names

    def of(self, path: str) -> str:
        """The name of a file's folder; empty if it has none."""
        self.names()
        return self._folders.get(str(PurePath(path).parent), "")


def folder_names(paths: Iterable[str]) -> dict[str, str]:
    """Folders by the name under which visitors see them; the first `MOST_FOLDERS`.

    >>> folder_names(["/home/me/Videos/a/1.mp4", "/home/me/Videos/b/c/2.mp4"])
    {'a': '/home/me/Videos/a', 'b': '/home/me/Videos/b', 'b/c': '/home/me/Videos/b/c'}
    >>> folder_names(["/home/me/Videos/1.mp4", "/mnt/disk/2.mp4"])
    {'Videos': '/home/me/Videos', 'disk': '/mnt/disk'}
    >>> folder_names(["/home/me/Videos/1.mp4", "/mnt/Videos/2.mp4"])
    {'me/Videos': '/home/me/Videos', 'mnt/Videos': '/mnt/Videos'}
    >>> folder_names(["/home/me/1.mp4", "/home/me/2.mp4"])
    {}
    """
    disks: dict[tuple[str, ...], set[PurePath]] = defaultdict(set)
    for path in paths:
        parent = PurePath(path).parent
        disks[parent.parts[:2]].add(parent)
    roots: dict[PurePath, set[PurePath]] = {}
    for parents in disks.values():
        root = PurePath(os.path.commonpath(parents))
        below = {folder for parent in parents for folder in (parent, *parent.parents) if folder.is_relative_to(root)}
        roots[root] = below if len(disks) > 1 else below - {root}
    shown = dict.fromkeys(roots, min(1, len(roots) - 1))  # how many parts of each root the names have
    found = _named(roots, shown)
    while growing := {
        root
        for same in found.values()
        for root, _ in same
        if len(same) > 1 and shown[root] < len(root.parts) - (not root.drive)
    }:
        shown |= {root: shown[root] + 1 for root in growing}
        found = _named(roots, shown)
    return {name: str(same[0][1]) for name, same in sorted(found.items())[:MOST_FOLDERS]}


def _named(
    roots: dict[PurePath, set[PurePath]], shown: dict[PurePath, int]
) -> dict[str, list[tuple[PurePath, PurePath]]]:
    """Roots and folders by a name that begins with the last parts of the root, as many as are `shown`."""
    found: dict[str, list[tuple[PurePath, PurePath]]] = defaultdict(list)
    for root, folders in roots.items():
        for folder in folders:
            name = PurePath(*folder.parts[len(root.parts) - shown[root] :]).as_posix()
            found[name].append((root, folder))
    return found
