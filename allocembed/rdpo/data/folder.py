"""Videos without texts: all videos in a folder. The target of each is its own vector at full resolution."""

from pathlib import Path

from allocembed.errors import DataError
from allocembed.rdpo.data.jsonl import JsonlSource, Record
from allocembed.video import is_video


def list_videos(folder: Path) -> list[Path]:
    """Paths of all video files below a folder, relative to it, in order; raise DataError if there are none."""
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if is_video(path) and path.is_file())
    shown = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    if not shown:
        raise DataError(f"there is no video in {folder}: pass a folder of videos with --videos")
    return shown


class FolderSource(JsonlSource):
    """Every video file below a folder, once."""

    def _to_hold(self, wanted: int, records: int) -> int:
        return min(wanted, records // 5)  # a folder may have fewer videos than are usually held out

    def _records(self, file: Path) -> list[Record]:
        if not file.is_dir():
            return super()._records(file)
        names = [self.names.setdefault((file / path).resolve(), str(path)) for path in list_videos(file)]
        return [Record(name, None, None) for name in dict.fromkeys(names)]
