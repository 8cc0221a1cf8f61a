"""`allocembed index --watch`: keep an index up to date with folders until stopped, and say what has changed."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocembed.config import EmbedConfig
from allocembed.errors import AllocEmbedError
from allocembed.files import FileEntry, find_videos
from allocembed.output.console import complain, progress, say
from allocembed.search.embedding import CHANGED
from allocembed.search.index import VideoIndex
from allocembed.search.indexing import IndexReport
from allocembed.search.store import IndexBusy, exists
from allocembed.search.watch import FolderState, follow
from allocembed.workers import Workers

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed


def keep_up_to_date(
    sources: Sequence[Path], to: str, config: EmbedConfig, segments: str | None, workers: Workers, **options: Any
) -> None:
    """Bring an index up to date with folders again and again. `options` are those of `VideoIndex.add`."""
    find_videos(sources)  # raises if one of them does not exist
    state = FolderState(sources)
    updater = IndexUpdater(state, to, config, segments, options, workers)
    try:
        say(f"watches {', '.join(map(str, sources))} for {to}   (Ctrl-C stops it)")
        follow(state, updater.update, tell=say)
    except KeyboardInterrupt:
        say("stopped; what was indexed is kept")


@dataclass
class IndexUpdater:
    """Brings one index up to date with what was found in the folders."""

    state: FolderState
    to: str
    config: EmbedConfig
    segments: str | None
    options: dict[str, Any]
    """Options of the first run. Later runs neither retry nor recheck, and prune only what was removed."""
    workers: Workers | None = None
    """Workers that embed; this process if there are none. They stay up between the runs."""
    index: VideoIndex | None = None
    embedder: "AllocEmbed | None" = None
    begun: bool = False
    """Whether a run has succeeded."""
    reported: set[str] = field(default_factory=set)
    """Complaints that are not worth repeating."""

    def update(self) -> bool:
        """Run once; return whether it succeeded. Only errors of the first run end the watch."""
        try:
            finished = self._run()
            self.begun = True
            return finished
        except IndexBusy:
            say(f"another run is indexing into {self.to}: waits for its turn")
        except AllocEmbedError as error:
            if not self.begun:
                raise
            self._complain("error:", str(error))
            with suppress(AllocEmbedError):  # a store that does not answer now may do so later
                if not exists(self.to):
                    self.index = None  # it was removed; the next run makes a new one
        return False

    def _run(self) -> bool:
        sources = self.state.there()
        if missing := [source for source in self.state.sources if source not in sources]:
            self._complain("waits for", ", ".join(map(str, missing)))
        for path, cause in self.state.unread.items():
            self._complain("left out", f"{path}: {cause}")
        new = not exists(self.to)
        if not sources or (new and not self._any_ready(sources)):
            return True
        index = self._open(new)
        before = _files(index)
        try:
            report = self._add(index, sources)
        finally:
            # An empty index would hold the next run to options with which nothing could be indexed.
            if new and index.discard_if_empty():
                self.index = None
        self._tell(before, _files(index) if self.index else {}, report)
        return not any(cause == CHANGED for _, cause in report.failed)

    def _any_ready(self, sources: Sequence[Path]) -> bool:
        return any(self.state.ready(file) for file in find_videos(sources)[0])

    def _open(self, new: bool) -> VideoIndex:
        if new:
            segments = self.segments or "auto"
            self.index = VideoIndex.create(
                self.to, self.config, segments=segments, embedder=self.embedder, workers=self.workers
            )
            if self.workers is None or not self.workers.separate:
                self.embedder = self.index.embedder
        elif self.index is None:
            self.index = VideoIndex.open(self.to, self.config, segments=self.segments, embedder=self.embedder)
        assert self.index is not None
        return self.index

    def _add(self, index: VideoIndex, sources: Sequence[Path]) -> IndexReport:
        options = {"prune": self.state.vanished, **{name: value for name, value in self.options.items() if value}}
        with progress("indexing") as shown:

            def show(report: IndexReport) -> None:
                shown.update(report.done, report.total or None, f"{report.tokens:,} tokens")

            report = index.add(sources, ready=self.state.ready, progress=show, workers=self.workers, **options)
        self.options = {
            name: value for name, value in self.options.items() if name not in ("prune", "retry_failed", "recheck")
        }
        return report

    def _tell(self, before: dict[str, FileEntry], after: dict[str, FileEntry], report: IndexReport) -> None:
        """A line for each file that has changed, and the counts."""
        lines = list(_differences(before, after))
        for line in lines:
            say(line)
        for path, cause in (*report.failed, *report.notes):
            self._complain("left out", f"{path}: {cause}")
        if lines:
            say(f"{len(after)} files in {self.to}; {report.tokens:,} tokens in {report.seconds:.1f} s")

    def _complain(self, label: str, text: str) -> None:
        if text not in self.reported:
            complain(label, text)
        self.reported.add(text)


def _files(index: VideoIndex) -> dict[str, FileEntry]:
    return {file.path: file for file in index.files()}


def _differences(before: dict[str, FileEntry], after: dict[str, FileEntry]) -> list[str]:
    """Changes of files that have vectors, a line each."""
    old = {path: file.video for path, file in before.items() if not file.error}
    new = {path: file.video for path, file in after.items() if not file.error}
    known = set(old.values())
    lines = [f"added {path}" for path in new.keys() - old.keys() if new[path] not in known]
    lines += [f"added {path}, known under another name" for path in new.keys() - old.keys() if new[path] in known]
    lines += [f"changed {path}" for path in new.keys() & old.keys() if new[path] != old[path]]
    lines += [f"removed {path}" for path in old.keys() - new.keys()]
    return sorted(lines)
