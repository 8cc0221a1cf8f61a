"""Watch folders and say when the index has something to do.

An event only says that it is time to look. Looking at all files then finds what is there, so that lost events, network
disks and other programs do no harm. A file is ready when its size and date have not changed for two seconds.
A file that is gone is forgotten only if the folder that held it is still on the same device: an unmounted disk leaves
another folder, or none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocembed.errors import MissingDependency, VideoError
from allocembed.files import FileEntry, find_videos
from allocembed.paths import absolute
from allocembed.search.said.subtitles import SUFFIXES
from allocembed.video.clip import is_video

SETTLE = 2.0  # seconds without a change after which a file counts as whole
GRACE = 2.0  # seconds that a file is kept beyond that when it is gone, because it may have been renamed
RESCAN = 300.0  # seconds after which all files are looked at without an event
TICK = 500  # milliseconds between two looks at files that are not ready
DEBOUNCE = 1000  # milliseconds in which events are collected
RETRY = 10.0  # seconds after which a failed update is tried again

Stamp = tuple[int, int]
"""Size and time of change."""
Place = tuple[str, int, int]
"""A folder, its device and its number on that device."""


@dataclass(frozen=True)
class SeenFile:
    """Size and date of a file, and since when it has had them."""

    stamp: Stamp
    since: float
    """By the monotonic clock."""


class FolderState:
    """The videos and subtitles in some folders, as they were at the last look."""

    def __init__(self, sources: Iterable[str | Path]) -> None:
        self.sources = [absolute(source) for source in sources]
        self.unread: dict[str, str] = {}
        """Folders that cannot be read, and why."""
        self.looks: dict[str, SeenFile] = {}
        self._gone: dict[str, SeenFile] = {}
        """Files that are gone, and since when. A moment later they may be there again under another name."""
        self._places: dict[str, tuple[Place, ...]] = {}
        self._begun = False
        self._now = 0.0  # of the last look, by which all is judged until the next

    def there(self) -> list[Path]:
        """The sources that exist at the moment."""
        return [source for source in self.sources if _identity(source) is not None]

    def look(self) -> dict[str, Stamp]:
        """Look at all files; return those that are ready, with size and date. Two equal answers mean: no change."""
        there = self.there()
        videos: list[FileEntry] = []
        self.unread = {}
        for source in there:
            with suppress(VideoError):  # it has just been removed
                files, unread = find_videos([source])
                videos += files
                self.unread |= unread
        found = {file.path: (file.size, file.changed) for file in videos} | dict(_subtitles(there))
        self._now, before = time.monotonic(), self.looks
        self.looks = {path: self._judge(stamp, before.get(path)) for path, stamp in found.items()}
        self._gone |= {path: SeenFile(look.stamp, self._now) for path, look in before.items() if path not in found}
        self._gone = {path: look for path, look in self._gone.items() if path not in found}
        self._begun = True
        chains: dict[str, tuple[Place, ...]] = {}
        for file in videos:
            folder = os.path.dirname(file.path)  # noqa: PTH120 (ten times as fast, for each of many files)
            if folder not in chains:
                chains[folder] = self._chain(Path(folder))
            if self._places.get(file.path) != chains[folder]:
                self._places[file.path] = chains[folder]
        ready = {path: look.stamp for path, look in self.looks.items() if self._is_ready(look)}
        return ready | {path: look.stamp for path, look in self._gone.items() if not self._is_due(look)}

    def forget(self) -> None:
        """Drop what is known of files that are gone; the index knows that they are gone."""
        self._gone = {path: look for path, look in self._gone.items() if not self._is_due(look)}
        kept = self.looks.keys() | self._gone.keys()
        self._places = {path: chain for path, chain in self._places.items() if path in kept}

    @property
    def waits(self) -> bool:
        """Whether there are files that are not ready, or have just gone."""
        return not (all(map(self._is_ready, self.looks.values())) and all(map(self._is_due, self._gone.values())))

    def ready(self, file: FileEntry) -> bool:
        """Whether a file is as it was at the last look, and ready."""
        look = self.looks.get(file.path)
        return look is not None and look.stamp == (file.size, file.changed) and self._is_ready(look)

    def vanished(self, path: str) -> bool:
        """Whether a file has been removed some seconds ago, and is not on a disk that is not mounted.

        The nearest folder that still exists must be on the device of the file, as the folders that are gone were. If it
        is another folder of that name, it must not be empty, as the place of a disk is. This is decided once, because
        another disk may get the same number later. A file that was never seen counts as not mounted.
        """
        gone = self._gone.get(path)
        if gone is None or not self._is_due(gone) or os.path.lexists(path):
            return False
        device = None
        for folder, disk, number in self._places.get(path, ()):
            if device is not None and disk != device:
                return False  # the folder below was the root of another disk
            device = disk
            now = _identity(Path(folder))
            if now is not None:
                return now[0] == disk and _is_used(folder, same=now[1] == number)
        return False

    def _judge(self, stamp: Stamp, before: SeenFile | None) -> SeenFile:
        if before is not None and before.stamp == stamp:
            return before
        # At the start, old files need not be waited for.
        age = 0.0 if self._begun else time.time() - stamp[1] / 1e9
        return SeenFile(stamp, self._now - max(0.0, age))

    def _is_ready(self, look: SeenFile) -> bool:
        return self._now - look.since >= SETTLE

    def _is_due(self, look: SeenFile) -> bool:
        """Whether a file is gone for so long that a new name of it would be ready."""
        return self._now - look.since >= SETTLE + GRACE

    def _chain(self, folder: Path) -> tuple[Place, ...]:
        """A folder and those above it, up to its source."""
        chain: list[Place] = []
        for each in (folder, *folder.parents):
            now = _identity(each)
            if now is None:
                return ()  # it has just been removed
            chain.append((str(each), now[0], now[1]))
            if each in self.sources:
                break
            if not any(each.is_relative_to(source) for source in self.sources):
                break  # the folder of a file that is a source itself
        return tuple(chain)


def follow(
    state: FolderState,
    update: Callable[[], bool],
    *,
    stop: threading.Event | None = None,
    rescan: float = RESCAN,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Call `update` whenever files have become ready or are gone, and now and then anyway, until `stop` or Ctrl-C.

    `update` returns whether it succeeded; otherwise it is called again after ten seconds.
    """
    done: dict[str, Stamp] | None = None
    due = earliest = time.monotonic()
    pending = False
    for changed in _ticks(state, stop or threading.Event(), tell):
        pending, now = pending or changed or state.waits, time.monotonic()
        if now < due and (now < earliest or not pending):
            continue
        files, pending = state.look(), False
        earliest = time.monotonic() + 5 * (time.monotonic() - now)  # a look at many files takes a while
        if files == done and now < due:
            continue
        finished = update()
        if finished:
            state.forget()
        done = files if finished else None
        due = time.monotonic() + (rescan if finished else RETRY)


def _ticks(state: FolderState, stop: threading.Event, tell: Callable[[str], None]) -> Iterator[bool]:
    """Whether something may have happened, about twice a second. A source that comes back is watched again."""
    watch = _import_watch()
    reported = ""
    while not stop.is_set():
        roots = _roots(state)
        folders = _folders(state)
        try:
            if not folders:
                stop.wait(TICK / 1000)
                yield roots != _roots(state)
                continue
            events = watch(
                *folders,
                watch_filter=_matters,
                debounce=DEBOUNCE,
                step=100,
                rust_timeout=TICK,
                yield_on_timeout=True,
                stop_event=stop,
                ignore_permission_denied=True,
            )
            new = True  # something may have happened before the watch was set up
            for changes in events:
                again = roots != _roots(state)
                yield bool(changes) or again or new
                new = False
                if again:
                    break
        except (OSError, RuntimeError) as error:  # such as too many folders for the system's limit
            cause = f"gets no notice of changes ({error}): looks at all files every {RETRY:.0f} s instead"
            if cause != reported:
                tell(cause)
                reported = cause
            stop.wait(RETRY)
            yield True


def _import_watch() -> Callable[..., Iterator[Any]]:
    try:
        from watchfiles import watch
    except ImportError as error:
        raise MissingDependency("--watch", "watchfiles", "search") from error
    return watch


def _matters(change: int, path: str) -> bool:
    """Whether an event may concern a video. Contents of other files are written all the time; names matter always."""
    modified = 2
    return change != modified or is_video(path) or path.lower().endswith(SUFFIXES)


def _folders(state: FolderState) -> list[Path]:
    return [path for path in state.sources if os.path.isdir(path)]  # noqa: PTH112 (never raises)


def _roots(state: FolderState) -> list[tuple[int, ...] | None]:
    """The state of all sources now. A file's size and date belong to it, because only folders are watched."""
    folders = _folders(state)
    return [_identity(source, content=source not in folders) for source in state.sources]


def _identity(path: Path, content: bool = False) -> tuple[int, ...] | None:
    """Device and number of a file or folder, and its size and date if wanted; None if it cannot be reached."""
    try:
        status = path.stat()
    except OSError:
        return None
    about = (status.st_size, status.st_mtime_ns) if content else ()
    return status.st_dev, status.st_ino, *about


def _is_used(folder: str, same: bool) -> bool:
    """Whether a folder can be listed, and holds something unless it is the same folder as before."""
    try:
        with os.scandir(folder) as entries:
            return same or any(entries)
    except OSError:
        return False


def _subtitles(sources: Iterable[Path]) -> Iterator[tuple[str, Stamp]]:
    """Subtitle files in folders, with size and date."""
    for source in sources:
        for parent, folders, names in os.walk(source):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                    path = os.path.join(parent, name)  # noqa: PTH118 (as above)
                    now = _identity(Path(path), content=True)
                    if now is not None:
                        yield path, (now[2], now[3])
