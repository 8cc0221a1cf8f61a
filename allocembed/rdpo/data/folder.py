"""Videos without texts: all videos in a folder. The target of each is its own vector at full resolution."""

from pathlib import Path

from allocembed.errors import DataError
from allocembed.rdpo.data.jsonl import JsonlSource, Record
from allocembed.video import is_video


class FolderSource(JsonlSource):
    """Every video file below a folder, once."""

    def _records(self, file: Path) -> list[Record]:
        if not file.is_dir():
            return super()._records(file)
        found = sorted(path.relative_to(file) for path in file.rglob("*") if is_video(path) and path.is_file())
        shown = [path for path in found if not any(part.startswith(".") for part in path.parts)]
        if not shown:
            raise DataError(f"there is no video in {file}: pass a folder of videos with --videos")
        names = [self.names.setdefault((file / path).resolve(), str(path)) for path in shown]
        return [Record(name, None, None) for name in dict.fromkeys(names)]
