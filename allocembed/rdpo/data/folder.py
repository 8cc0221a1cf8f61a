"""Videos without texts: all videos in a folder. The target of each is its own vector at full resolution."""

from pathlib import Path

from allocembed.errors import DataError
from allocembed.files import find_videos
from allocembed.paths import absolute
from allocembed.rdpo.data.jsonl import JsonlSource, Record


def list_videos(folder: Path) -> list[Path]:
    """Paths of all video files below a folder, relative to it, in order; raise DataError if there are none."""
    paths = [Path(file.path) for file in find_videos([folder])[0] if not file.error]
    if not paths:
        raise DataError(f"there is no video in {folder}: pass a folder of videos with --videos")
    return sorted(path.relative_to(absolute(folder)) for path in paths)


class FolderSource(JsonlSource):
    """Every video file below a folder, once."""

    def _to_hold(self, wanted: int, records: int) -> int:
        held = min(wanted, records // 5)  # a folder may have fewer videos than are usually held out
        if wanted and not held:
            raise DataError(f"{records} videos are too few to hold some out for validation: give at least 5")
        return held

    def _records(self, file: Path) -> list[Record]:
        if not file.is_dir():
            return super()._records(file)
        names = [self.names.setdefault((file / path).resolve(), str(path)) for path in list_videos(file)]
        return [Record(name, None, None) for name in dict.fromkeys(names)]
