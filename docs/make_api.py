"""Write docs/api.md from the docstrings of the public API: python docs/make_api.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path

import docstring_parser

SOURCE = "str | Path | ndarray | Sequence[ndarray | Image]"
PAGE = Path(__file__).parent / "api.md"
PUBLIC = {
    "allocembed": (
        "AllocEmbed",
        "EmbedConfig",
        "VideoEmbedding",
        "TextEmbedding",
        "ImageEmbedding",
        "Failure",
        "Allocation",
        "Budget",
        "Clip",
        "open_video",
        "load_backbone",
    ),
    "allocembed.video": ("VideoSource", "DecodeLimits", "VideoInfo"),
    "allocembed.video.decoders.base": ("Decoders", "Decoder", "FrameTable", "VideoInput"),
    "allocembed.allocators.base": ("Allocator", "Plan"),
    "allocembed.backbones.base": ("Backbone", "Prompt", "Item"),
    "allocembed.search": ("VideoIndex", "Hit"),
    "allocembed.execution.stream": ("embed_jobs",),
    "allocembed.film": ("save_png", "save_html", "as_json"),
}


def render() -> str:
    """The whole page."""
    parts = ["# Python API\n", "Made from the docstrings by `python docs/make_api.py`; the tests keep it up to date.\n"]
    parts.append(f"`Source` stands for `{SOURCE}`.\n")
    for module, names in PUBLIC.items():
        parts.append(f"## `{module}`\n")
        parts += [describe(name, getattr(import_module(module), name)) for name in names]
    errors = import_module("allocembed.errors").__doc__ or ""
    tree = inspect.cleandoc(errors).split("\n\n")[-1]
    parts.append(f"## Errors\n\nAll errors that a user can fix are in `allocembed.errors`:\n\n```text\n{tree}\n```\n")
    return "\n".join(parts)


def describe(name: str, thing: object) -> str:
    if not inspect.isclass(thing):
        return f"### `{name}{signature(thing)}`\n\n{words(thing)}\n"
    lines = [f"### `{name}`\n", words(thing), ""]
    if dataclasses.is_dataclass(thing):
        docs = {each.arg_name: each.description or "" for each in docstring_parser.parse_from_object(thing).params}
        lines += [
            describe_field(field, " ".join(docs.get(field.name, "").split())) for field in dataclasses.fields(thing)
        ]
    for member, value in vars(thing).items():
        public = not member.startswith("_")
        called = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if public and isinstance(value, property) and value.fget:
            lines.append(f"- `{member}`: {words(value.fget)}")
        elif public and inspect.isfunction(called):
            lines.append(f"- `{member}{signature(called)}`: {words(called)}")
    return "\n".join(lines).rstrip() + "\n"


def describe_field(field: dataclasses.Field, about: str) -> str:
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
    return f"- `{short(f'{field.name}: {kind}{default}')}`" + (f": {about}" if about else "")


def signature(thing: object) -> str:
    text = str(inspect.signature(thing))  # pyright: ignore[reportArgumentType] (anything callable)
    return short(re.sub(r"^\((?:self|cls)(?:, )?", "(", text))


def short(text: str) -> str:
    """Without the modules of types, and with the names of unions of them."""
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z]|ndarray)", "", text).replace("'", "").replace("PIL.Image.Image", "Image")
    return text.replace(SOURCE, "Source")


def words(thing: object) -> str:
    """The docstring without its examples, in one line."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split(">>>")[0].split())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
