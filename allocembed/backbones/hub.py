"""Models in the hub's cache on this machine."""

import json
from pathlib import Path

FILES = ["*.json", "*.txt", "*.jinja", "*.safetensors", "*.bin"]
"""What is downloaded of a model. The cache knows all files of a repository, so a look-up needs these patterns, too."""
WHOLE = [f"{name}.{kind}" for name in ("model", "pytorch_model", "adapter_model") for kind in ("safetensors", "bin")]
"""Files that hold all weights."""


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
    """Whether all weights are there. A download that was interrupted may have left some parts, or their list alone."""
    if any((folder / name).is_file() for name in WHOLE):
        return True
    lists = [json.loads(each.read_text(encoding="utf-8"))["weight_map"] for each in folder.glob("*.index.json")]
    return any(all((folder / part).is_file() for part in set(each.values())) for each in lists)
