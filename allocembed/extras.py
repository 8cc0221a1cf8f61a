"""Optional packages: found or missed before work begins, without importing them."""

from importlib.util import find_spec

from allocembed.errors import MissingDependency


def require(what: str, package: str, extra: str, *modules: str) -> None:
    """Raise MissingDependency if a module is not installed; by default the one that has the name of the package.

    >>> require("the command line", "tyro", "search")
    """
    if any(find_spec(module) is None for module in modules or (package,)):
        raise MissingDependency(what, package, extra)
