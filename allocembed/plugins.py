"""Names that can be extended by installing a package: the seams of AllocEmbed, and their entry points.

| group | a name stands for |
|---|---|
| `allocembed.backbones` | a `BackboneEntry`: a checkpoint with a short name |
| `allocembed.families` | a `Family`: the classes that read one model type |
| `allocembed.allocators` | a subclass of `Allocator` |
| `allocembed.decoders` | a subclass of `Decoders` |
| `allocembed.stores` | an `IndexStore` class; the name is the scheme of an address |
| `allocembed.workers` | a `Workers` class |
| `allocembed.commands` | a `Command`; the name is what users type: `mine`, or `eval mine` in a group |
| `allocembed.presets` | path of a TOML file with options of `allocembed train` |
| `allocembed.training_data` | a function from a `TrainConfig` to a `Source` of `allocembed train --data` |
| `allocembed.vectors` | a function that writes a table of vectors; the name is the end of a file's name |

A package adds a name in its own `pyproject.toml`, and the name then works in options, settings and indexes:

    [project.entry-points."allocembed.allocators"]
    middle = "my_package.middle:MiddleFirst"

Without a package, `METHODS["middle"] = MiddleFirst` adds the name in this process alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from allocembed.errors import ConfigError

T = TypeVar("T")

OWN_PACKAGES = {
    "allocembed-nano": {
        "allocembed.backbones": ("nano-qwen3", "nano-qwen2", "nano-gemma"),
        "allocembed.commands": ("demo", "eval nano"),
        "allocembed.presets": ("nano",),
        "allocembed.training_data": ("world",),
    }
}
"""Packages that are developed beside this one, and the names they add to groups: only for errors."""


class Names(MutableMapping[str, T], Generic[T]):
    """The names of one seam: our own, and those of installed packages. A name is imported when it is looked up.

    >>> decoders = Names[type]("allocembed.example", {"thread": "threading:Thread"})
    >>> sorted(decoders), "thread" in decoders, decoders["thread"].__name__
    (['thread'], True, 'Thread')
    """

    def __init__(self, group: str, own: Mapping[str, Any]) -> None:
        """`own` maps names to values, or to the place of a value as "module:name". No package can replace them."""
        self.group, self._own = group, dict(own)
        self._loaded: dict[str, T] = {}

    @cached_property
    def _added(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in installed().select(group=self.group)}

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._added})

    def __len__(self) -> int:
        return len({**self._own, **self._added})

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, value: T) -> None:
        self._own[name] = self._loaded[name] = value

    def __delitem__(self, name: str) -> None:
        del self._own[name]
        self._loaded.pop(name, None)

    def absence(self, name: str) -> str:
        """The package of ours to install for a name; empty if the name is there, or of no package that we know.

        >>> Names("allocembed.presets", {"nano": 1}).absence("nano"), Names("allocembed.example", {}).absence("nano")
        ('', '')
        """
        for package, groups in OWN_PACKAGES.items():
            if name in groups.get(self.group, ()) and name not in self:
                install = f"pip install {package} (from a checkout: pip install -e packages/{package})"
                return f"{name!r} comes with the package {package}, which is not installed: {install}"
        return ""

    def _load(self, name: str) -> T:
        if name in self._own:
            stated = self._own[name]
            return load_place(stated) if isinstance(stated, str) else stated
        point = self._added[name]
        try:
            return point.load()
        except Exception as error:  # the code of others raises errors of every kind
            package = point.dist.name if point.dist else point.value
            raise ConfigError(
                f"the package {package} adds the name {name} to {self.group}, but cannot be imported ({error}): "
                "update or uninstall it"
            ) from error


@cache
def installed() -> Any:
    """The entry points of all packages, looked up once for all groups: each look takes some milliseconds."""
    return entry_points()


def load_place(place: str) -> Any:
    """The value that "module:name" stands for.

    >>> load_place("math:pi") > 3
    True
    """
    module, name = place.split(":")
    return getattr(import_module(module), name)
