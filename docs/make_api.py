"""Write docs/api.md, which git ignores, from the docstrings of the public API: python docs/make_api.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path

import docstring_parser

SOURCE = "str | Path | ndarray | Sequence[ndarray | Image]"
PAGE = Path(__file__).parent / "api.md"
PACKAGES = ("allocembed", "allocembed.search", "allocembed.video", "allocembed.film")
"""Packages that say in `__all__` what is public."""
CHOSEN = {
    "allocembed.video.decoders.base": ("Decoders", "Decoder", "FrameTable", "VideoInput"),
    "allocembed.allocators.base": ("Allocator", "Plan"),
    "allocembed.backbones.base": ("Backbone", "Prompt", "Item"),
    "allocembed.execution.stream": ("embed_jobs",),
    "allocembed.search.store": ("IndexStore", "LineStore"),
    "allocembed.workers": ("Workers", "WorkerOptions"),
    "allocembed.plugins": ("Names",),
}
"""Public names of other modules."""


def public() -> dict[str, list[str]]:
    """The public names of every module, each once. Errors have a part of their own."""
    found: dict[str, list[str]] = {}
    for module in (*PACKAGES, *CHOSEN):
        names = CHOSEN.get(module) or import_module(module).__all__
        seen = {name for each in found.values() for name in each}
        found[module] = [
            name for name in names if name not in seen and not is_error(getattr(import_module(module), name))
        ]
    return found


def is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Exception)


def render() -> str:
    """The whole page."""
    parts = ["# Python API\n", f"`Source` stands for `{SOURCE}`.\n"]
    for module, names in public().items():
        parts.append(f"## `{module}`\n")
        parts += [describe(name, getattr(import_module(module), name)) for name in names]
    errors = import_module("allocembed.errors").__doc__ or ""
    tree = inspect.cleandoc(errors).split("\n\n")[-1]
    parts.append(f"## Errors\n\nAll errors that a user can fix are in `allocembed.errors`:\n\n```text\n{tree}\n```\n")
    return "\n".join(parts)


def describe(name: str, thing: object) -> str:
    if inspect.isclass(thing):
        return describe_class(name, thing)
    if inspect.isroutine(thing):
        return f"### `{name}{signature(thing)}`\n\n{words(thing)}\n"
    return f"### `{name}`\n\n`{short(as_written(thing))}`\n"


def describe_class(name: str, thing: type) -> str:
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
    default = "" if field.default is dataclasses.MISSING else f" = {as_written(field.default)}"
    return f"- `{short(f'{field.name}: {as_written(field.type)}{default}')}`" + (f": {about}" if about else "")


class Written:
    """Text that stands for itself in a signature."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def as_written(value: object) -> str:
    """A type or a default as one writes it, with double quotes around strings. Types may be text already.

    >>> from typing import Literal
    >>> as_written(Literal["exact", "keyframe"]), as_written(int), as_written(None)
    ('typing.Literal["exact", "keyframe"]', 'int', 'None')
    """
    text = value.__name__ if isinstance(value, type) else value if isinstance(value, Written) else repr(value)
    return str(text).replace("'", '"')


def signature(thing: object) -> str:
    """How a function is called, without `self`, types and defaults as one writes them."""
    found = inspect.signature(thing)  # pyright: ignore[reportArgumentType] (anything callable)
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(
            annotation=each.annotation if each.annotation is empty else written_type(each.annotation),
            default=each.default if each.default is empty else Written(as_written(each.default)),
        )
        for name, each in found.parameters.items()
        if name not in ("self", "cls")
    ]
    returned = found.return_annotation
    returned = returned if returned is empty else written_type(returned)
    return short(str(inspect.Signature(parameters, return_annotation=returned)))


def written_type(annotation: object) -> Written:
    """An annotation; where the module postpones annotations, it is the text of its source."""
    return Written(annotation if isinstance(annotation, str) else as_written(annotation))


def short(text: str) -> str:
    """Without the modules of types, and with the names of unions of them."""
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z]|ndarray)|~", "", text)
    return text.replace("PIL.Image.Image", "Image").replace(SOURCE, "Source")


def words(thing: object) -> str:
    """The docstring without its examples, in one line."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split(">>>")[0].split())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"→ {PAGE}")
