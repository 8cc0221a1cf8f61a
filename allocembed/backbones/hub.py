"""Models in the hub's cache on this machine."""

import json
from pathlib import Path

FILES = ["*.json", "*.txt", "*.jinja", "*.safetensors", "*.bin"]
"""What is downloaded of a model. The cache knows all files of a repository, so a look-up needs these patterns, too."""


def cached_folder(source: str) -> Path | None:
    """The complete copy of a hub id in the cache, found without a request to the network; None if there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(source, local_files_only=True, allow_patterns=FILES))
    except LocalEntryNotFoundError:
        return None
    return folder if _has_weights(folder) else None


def _has_weights(folder: Path) -> bool:
    """Whether all weights are there. Of a download that was interrupted, the list of parts may be all there is."""
    lists = [json.loads(each.read_text(encoding="utf-8"))["weight_map"] for each in folder.glob("*.index.json")]
    if not lists:
        return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    return any(all((folder / part).is_file() for part in set(each.values())) for each in lists)
