"""A folder for sentence-transformers: it holds settings and prompts, but no code and no backbone weights.

The files are written without sentence-transformers and without loading a model, so that an export takes a moment
wherever it runs. A learned allocator from a local folder is copied, because it is small; a backbone is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allocembed import __version__
from allocembed.allocators.registry import is_method, split_looks
from allocembed.backbones.checkpoint import Checkpoint
from allocembed.config import EmbedConfig
from allocembed.errors import DataError, OutputError
from allocembed.output.files import write_text
from allocembed.policy.scale_policy import ScalePolicy

SETTINGS = "allocembed.json"
ALLOCATOR = "allocator"
CLASS = "allocembed.integrations.sentence_transformers.AllocEmbedModule"
README = """---
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags:
- sentence-transformers
- video-embedding
- allocembed
---
# {name}

Vectors of videos, pictures and texts with `{backbone}`, each video under a budget of `{budget}` (allocator:
`{allocator}`). This folder holds settings; the code is AllocEmbed's.

```python
# pip install 'allocembed[st]'
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}", trust_remote_code=True)
videos = model.encode_document([{{"video": "a.mp4"}}, {{"video": "b.mp4"}}])
print(model.similarity(model.encode_query("a dog"), videos))
```
"""


def export_folder(config: EmbedConfig, folder: Path) -> None:
    """Write a folder that `SentenceTransformer(folder, trust_remote_code=True)` loads."""
    config.check()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / SETTINGS).is_file():
        raise OutputError(f"cannot export to {folder}: the folder holds other files; give an empty or a new one")
    prompts = {"query": query_instruction(config) or "", "document": ""}
    modules = [{"idx": 0, "name": "0", "path": "", "type": CLASS}]
    model = {
        "model_type": "SentenceTransformer",
        "prompts": prompts,
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
        "__version__": {"allocembed": __version__},
    }
    write_settings(config, folder)
    write_text(folder / "config_sentence_transformers.json", json.dumps(model, indent=2) + "\n")
    facts = {"backbone": config.backbone, "allocator": config.allocator, "budget": config.budget}
    write_text(folder / "README.md", README.format(name=folder.name, **facts))
    write_text(folder / "modules.json", json.dumps(modules, indent=2) + "\n")  # last: it makes the folder a model


def write_settings(config: EmbedConfig, folder: Path) -> None:
    """Write the settings, and the allocator if it is a local folder."""
    saved = config.as_dict()
    del saved["device"]  # of the machine that loads the folder
    learned, looks = split_looks(config.allocator)
    if not is_method(learned) and Path(learned).is_dir():
        ScalePolicy.from_pretrained(learned).save_pretrained(folder / ALLOCATOR)
        saved["allocator"] = f"./{ALLOCATOR}+{looks}" if looks else f"./{ALLOCATOR}"
    write_text(folder / SETTINGS, json.dumps(saved, indent=2) + "\n")


def read_settings(saved: Mapping[str, Any], allocator: str | None) -> EmbedConfig:
    """The settings in a folder, whose own allocator, if it has one, is at the path `allocator`."""
    if not saved:
        raise DataError(f"{SETTINGS} is missing or empty: write the folder again with allocembed export-st")
    values = dict(saved)
    if allocator and has_allocator(values):
        looks = split_looks(values["allocator"])[1]
        values["allocator"] = f"{allocator}+{looks}" if looks else allocator
    return EmbedConfig.from_dict(values)


def has_allocator(saved: Mapping[str, Any]) -> bool:
    """Whether the settings name the allocator in their own folder, alone or multiplied by the sensitivity.

    >>> has_allocator({"allocator": "./allocator+sensitivity"}), has_allocator({"allocator": "learned"})
    (True, False)
    """
    return split_looks(str(saved.get("allocator")))[0] == f"./{ALLOCATOR}"


def query_instruction(config: EmbedConfig) -> str | None:
    """The instruction with which the backbone embeds search sentences, found without its weights."""
    found = Checkpoint.find(config.backbone, config.inputs)
    if found.inputs is None:
        found = Checkpoint.fetch(config.backbone, config.inputs)
    assert found.inputs is not None
    return found.family.load().find_query_instruction(found.inputs)
