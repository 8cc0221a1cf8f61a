"""The files of a model: a local folder, the hub's cache on this machine, or a download."""

import json
from pathlib import Path

from allocembed.backbones.registry import REGISTRY
from allocembed.errors import BackboneError
from allocembed.paths import is_folder

FILES = ["*.json", "*.txt", "*.jinja", "*.safetensors", "*.bin"]
"""Patterns of the files that are downloaded of a model. A look-up in the cache, which knows all files, needs them."""
WHOLE = [f"{name}.{kind}" for name in ("model", "pytorch_model", "adapter_model") for kind in ("safetensors", "bin")]
"""Files that hold all weights."""
TOY = "nano-qwen3"


def find_folder(source: str, name: str) -> Path:
    """The local folder of a model: the folder itself, the hub cache's copy, or a new download.

    A cached model is used as it is, without a request to the network. Without a network the error comes at once: the
    hub client alone would retry each file for half a minute.
    """
    if is_folder(source):
        return Path(source)
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(source)
    except HFValidationError:
        missing = ValueError(f"there is no folder {source}")
        raise BackboneError(cannot_load(name, source, missing)) from missing
    try:
        if (cached := cached_folder(source)) is not None:
            return cached
        HfApi().model_info(source, timeout=10)
        return Path(snapshot_download(source, allow_patterns=FILES))
    except Exception as error:  # the hub client raises its own errors and those of its HTTP library
        raise BackboneError(cannot_load(name, source, error)) from error


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


def cannot_load(name: str, source: str, error: Exception) -> str:
    """Why a model cannot be loaded, and what to do."""
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "custom code" in cause:
        return (
            f"cannot load {name}: it needs Python code from its own folder, and AllocEmbed runs none; save it with "
            "transformers' own classes, or use another model"
        )
    if is_folder(source):
        return (
            f"cannot load the backbone in {source} ({type(error).__name__}: {cause}): the folder is incomplete or "
            "broken; download or save it again"
        )
    local = Path(source).is_absolute() or source.startswith(".")
    fetch = "" if local else f"  hf download {source}   where the network allows it\n"
    toy = f"  --backbone {TOY}        {REGISTRY.absence(TOY) or 'a toy model, to try things out'}\n"
    return (
        f"cannot load backbone {name!r} ({cause}). Options:\n"
        f"  --backbone /path/to/folder   a local copy of it\n{fetch}{toy}known names: {', '.join(REGISTRY)}"
    )
