"""Commands as functions: tyro turns their parameters and the fields of config dataclasses into options.

A parameter of a dataclass type, such as `EmbedConfig`, becomes one option per field, documented by the field's
docstring. A command may hide fields, or take their defaults from a place that its arguments name, such as an index.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import getdoc
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import tyro
from tyro import constructors
from tyro.conf import FlagCreatePairsOff, Positional, arg

from allocembed.config import EmbedConfig
from allocembed.errors import AllocEmbedError
from allocembed.paths import why_absent
from allocembed.remote.objects import is_remote

Run = Callable[..., int | None]
"""A command's function; it returns the exit status, or None for 0."""
SHORT = {"backbone": "-b", "backbones": "-b", "allocator": "-a", "out": "-o"}
REPEATED = {"backbones": "backbone"}
"""Fields whose option may be repeated; it has the name of one value."""

NOTHING_KEPT = "nothing is kept"
UNSET = arg(help_behavior_hint="")
"""Marks an option whose default is not worth printing."""
FLAT = arg(name="")
"""Marks a dataclass whose fields are options of the command itself."""
Config = Annotated[EmbedConfig, FLAT]
Engine = Annotated[str, arg(metavar="NAME")]
"""A name among `workers.WORKERS`."""
Flag = Annotated[bool, UNSET, FlagCreatePairsOff]
AsJson = Annotated[bool, arg(name="json", help_behavior_hint=""), FlagCreatePairsOff]
Out = Annotated[Path, arg(aliases=["-o"])]
Paths = Annotated[tuple[Path, ...], Positional, arg(metavar="PATH ...", help_behavior_hint="")]
Place = str | Path
"""A path, or an address of object storage, which stays a string."""
Places = Annotated[tuple[Place, ...], Positional, arg(metavar="PATH ...", help_behavior_hint="")]


class UsageError(AllocEmbedError):
    """The words of a command line cannot be understood."""


@dataclass(frozen=True)
class Command:
    """A command: the function that runs it, and how the fields of its dataclasses become options."""

    run: Run
    hidden: tuple[str, ...] = ()
    """Fields that are not options of this command."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields instead of their defaults."""
    defaults: Callable[[dict[str, Any]], Any] | None = None
    """Makes the dataclass that holds the defaults, from the arguments as far as they are known without it."""

    @property
    def about(self) -> str:
        """The function's docstring up to the parameters."""
        return (getdoc(self.run) or "").partition("Args:")[0].strip()

    def parse(self, words: Sequence[str], prog: str) -> Callable[[], int | None]:
        """The function with its arguments, ready to call. Raise UsageError if the words do not fit."""
        preset = self.preset
        if self.defaults:
            # The given values may be impossible together with the usual defaults, so nothing is checked yet.
            found = self.defaults(self._arguments(words, prog, preset, check=False))
            preset = {} if found is None else vars(found)
        return partial(self.run, **self._arguments(words, prog, preset))

    def _arguments(
        self, words: Sequence[str], prog: str, preset: Mapping[str, Any], check: bool = True
    ) -> dict[str, Any]:
        @wraps(self.run)
        def collect(**arguments: Any) -> dict[str, Any]:
            return arguments

        # A flag needs a --no- form only if its default can be on.
        markers = [tyro.conf.DisallowNone, *([] if self.defaults else [FlagCreatePairsOff])]
        registry, complaint = _registry(self.hidden, preset, check), io.StringIO()
        try:
            with redirect_stderr(complaint):
                return tyro.cli(
                    collect, prog=prog, description=self.about, args=words, config=markers, registry=registry
                )
        except SystemExit as stop:
            if not stop.code:
                raise
            message = _like_options(words, complaint.getvalue()) or _one_line(complaint.getvalue())
            raise UsageError(f"{message}; see {prog} --help") from None


def all_but(*shown: str) -> tuple[str, ...]:
    """The fields of `EmbedConfig` to hide if only these are options."""
    return tuple(item.name for item in fields(EmbedConfig) if item.name not in shown)


def at_least(least: int, **options: int | None) -> None:
    """Raise UsageError for an option with a smaller number."""
    for name, value in options.items():
        if value is not None and value < least:
            raise UsageError(f"--{name} must be at least {least}, not {value}")


def _registry(hidden: Sequence[str], preset: Mapping[str, Any], check: bool) -> constructors.ConstructorRegistry:
    registry = constructors.ConstructorRegistry()
    reading: set[Any] = set()

    @registry.struct_rule
    def fields_rule(info: constructors.StructTypeInfo) -> constructors.StructConstructorSpec | None:
        """Options from the fields of a dataclass as tyro reads them, without the hidden ones."""
        if not is_dataclass(info.type) or info.type in reading:
            return None
        reading.add(info.type)  # so that this rule stands aside for tyro's own
        usual = constructors.ConstructorRegistry.get_struct_spec(info)
        reading.remove(info.type)
        assert isinstance(usual, constructors.StructConstructorSpec)
        stated, fixed, specs = {each.name: each.metadata for each in fields(info.type)}, {}, []
        for item in usual.fields:
            value = preset.get(item.name, item.default)
            if item.name in hidden:
                fixed[item.name] = value
            else:
                kind: Any = tuple[str, ...] if item.name in REPEATED else item.type
                kind = Annotated[kind, *_markers(item.name, kind, value, stated[item.name].get("metavar"))]
                specs.append(replace(item, type=kind, default=value, helptext=partial(_paragraph, item.helptext)))
        make = partial(info.type if check else SimpleNamespace, **fixed)
        return constructors.StructConstructorSpec(make, tuple(specs))

    @registry.primitive_rule
    def words_rule(info: constructors.PrimitiveTypeInfo) -> constructors.PrimitiveConstructorSpec[Any] | None:
        if info.type is Path:
            return _primitive(Path, "PATH", _path, str)
        if info.type == Place:
            return _primitive(str | Path, "PATH", _place, str)
        return _primitive(tuple, "NAME,NAME...", _names, ",".join) if info.type == Sequence[str] else None

    return registry


def _markers(name: str, kind: Any, value: Any, metavar: str | None) -> list[Any]:
    if is_dataclass(kind):
        return [FLAT]
    hint = "" if value is None or value is False or value in ("", ()) else None
    short = [SHORT[name]] if name in SHORT else None
    markers = [arg(name=REPEATED.get(name), aliases=short, metavar=metavar, help_behavior_hint=hint)]
    return [*markers, tyro.conf.UseAppendAction] if name in REPEATED else markers


def _paragraph(text: str | Callable[[], str | None] | None) -> str:
    """A field's docstring as one paragraph; tyro reads it only when help is shown."""
    return " ".join(((text() if callable(text) else text) or "").split())


def _primitive(cls: Any, metavar: str, read: Callable[[str], Any], show: Callable[[Any], str]) -> Any:
    """How tyro reads one word as a value of a type."""
    return constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: isinstance(value, cls),
        str_from_instance=lambda value: [show(value)],
    )


def _path(text: str) -> Path:
    """A path that is not empty: an unset shell variable must not mean the current folder."""
    if not text:
        raise UsageError("the path is empty; give a file or a folder")
    return Path(text)


def _place(text: str) -> Place:
    return text if is_remote(text) else _path(text)


def _names(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("the list is empty: name something, or leave the option out")
    return names


def _like_options(words: Sequence[str], box: str) -> str:
    """Advice on files and texts whose first letter makes them look like options; empty if there are none.

    tyro then blames the words after them, too.
    """
    if file := next((word for word in words if re.match(r"-.", word) and not why_absent(word)), None):
        return f"{file} looks like an option: write ./{file}"
    if "Unrecognized options" not in box:
        return ""
    blamed = [word for word in words if re.match(r"-[^-]", word) and word in box]
    return f"unrecognized option {blamed[0]}; if it is a text, write -- before it, after all options" if blamed else ""


def _one_line(box: str) -> str:
    """tyro's boxed complaint as one line: the message, and similar options."""
    lines = [line.strip(" │╭╮╰╯") for line in box.splitlines()[1:]]
    parts = [list(part) for is_rule, part in groupby(lines, lambda line: set(line) <= {"-", "─"}) if not is_rule]
    message = " ".join(parts[0]).partition("  Got errors")[0].rstrip(".") if parts else box
    for old, new in (("Error parsing", "cannot read"), ("'None', ", ""), (", 'None'", "")):
        message = message.replace(old, new)
    message = re.sub(r"no type matching (\w+) could be instantiated from \['(.*)'\]", r"'\2' is not a \1", message)
    similar = [word for part in parts if part[0] == "Perhaps you meant:" for line in part[1:] for word in line.split()]
    names = " or ".join(dict.fromkeys(word for word in similar if word.startswith("--")))
    return f"{message[:1].lower()}{message[1:]}{f' (did you mean {names}?)' if names else ''}"
