"""Import lancedb in half the time, so that listing an index answers at once.

`import lancedb` costs 1.5 s of CPU, most of it for parts that an index in a folder or bucket never uses:
- `lance_namespace`, hundreds of pydantic models of a REST client. lancedb only annotates with its names and calls them
  (https://github.com/lance-format/lance/pull/9273 makes them lazy in a sister package). Here these packages are
  registered without running them; they run when a name is called, or read by anybody after lancedb is imported.
- pandas, which pyarrow.dataset imports if it can, and needs only to convert to it; pyarrow then imports it by itself.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from allocembed.errors import MissingDependency

CLIENT = ("lance_namespace_urllib3_client", "lance_namespace_urllib3_client.models", "lance_namespace")
TESTED = "0.40."  # other versions may use the names differently and are imported as they are


def import_lancedb() -> tuple[Any, Any]:
    """The modules lancedb and pyarrow."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # else it warns of each table that does not exist yet
    try:
        if "lancedb" not in sys.modules and version("lancedb").startswith(TESTED):
            with _without_pandas():
                import pyarrow.dataset
            with _without_client():
                import lancedb
        import lancedb
        import pyarrow
    except ImportError as error:
        raise MissingDependency("an index", "LanceDB", "search") from error
    return lancedb, pyarrow


class _HidePandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is imported when it is needed", name=fullname)


@contextmanager
def _without_pandas() -> Iterator[None]:
    sys.meta_path.insert(0, hide := _HidePandas())
    try:
        yield
    finally:
        sys.meta_path.remove(hide)


@contextmanager
def _without_client() -> Iterator[None]:
    if any(name in sys.modules for name in CLIENT):
        yield  # somebody uses the client, and has paid for it
        return
    modules = [_register(name) for name in CLIENT]
    try:
        for module in modules:
            module.__dict__["__getattr__"] = cache(lambda name, module=module: _LateCall(modules, module, name))
        yield
    finally:
        for module in modules:
            module.__dict__["__getattr__"] = lambda name, module=module: _run(modules, module, name)


def _register(name: str) -> ModuleType:
    spec = find_spec(name)
    if spec is None:
        raise ImportError(f"{name} is missing")
    module = sys.modules[name] = module_from_spec(spec)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def _run(modules: list[ModuleType], module: ModuleType, name: str) -> Any:
    """Run all packages that have not run yet; the models first, because the others import their names."""
    for each in sorted(modules, key=lambda each: not each.__name__.endswith(".models")):
        if each.__dict__.pop("__getattr__", None) and each.__spec__ and each.__spec__.loader:
            each.__spec__.loader.exec_module(each)
    return getattr(module, name)


class _LateCall:
    """A name that lancedb has imported: an annotation until it is called."""

    def __init__(self, modules: list[ModuleType], module: ModuleType, name: str) -> None:
        self._found = modules, module, name

    def __call__(self, *args: Any, **named: Any) -> Any:
        return _run(*self._found)(*args, **named)
