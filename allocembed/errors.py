"""Every error that a user can fix. Each message says what is wrong and what to do.

The command line catches `AllocEmbedError` and nothing else: any other exception is a bug and is reported as one.

    AllocEmbedError
    ├── ConfigError        an option or argument has an impossible value (also a ValueError)
    │   └── BudgetError    no allocation can meet the budget
    ├── VideoError         a source cannot be read
    │   └── VideoBudgetError   no allocation of this video can meet the budget (also a BudgetError)
    ├── BackboneError      a model cannot be loaded, or cannot embed this input
    ├── PolicyError        a learned allocator cannot be loaded or used
    ├── DataError          a dataset, annotation or checkpoint file is missing or malformed
    ├── SearchError        an index cannot be used as asked
    ├── OutputError        a result cannot be written
    └── MissingDependency  an optional package is not installed
"""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

from allocembed.words import printable


class AllocEmbedError(Exception):
    """Base of all errors that a user can fix."""


class ConfigError(AllocEmbedError, ValueError):
    """An option or argument has an impossible value."""


class BudgetError(ConfigError):
    """No allocation can meet the budget; the message names the smallest budget that could be met."""


class VideoError(AllocEmbedError):
    """A source that cannot be read, and why.

    >>> str(VideoError("talk.mp4", "the file is empty; copy or download it again"))
    'talk.mp4: the file is empty; copy or download it again'
    >>> print(VideoError("a\\nb.mp4", "it is empty"))
    a\\nb.mp4: it is empty
    """

    def __init__(self, source: str, cause: str) -> None:
        super().__init__(source, cause)
        self.source = source
        self.cause = cause

    def __str__(self) -> str:
        return f"{printable(self.source)}: {self.cause}"


class VideoBudgetError(VideoError, BudgetError):
    """No allocation of this video can meet the budget.

    >>> isinstance(VideoBudgetError("talk.mp4", "the budget is too small"), BudgetError)
    True
    """


class BackboneError(AllocEmbedError):
    """A model cannot be loaded, or cannot embed this input."""


class PolicyError(AllocEmbedError):
    """A learned allocator cannot be loaded or used."""


class DataError(AllocEmbedError):
    """A dataset, annotation or checkpoint file is missing or malformed."""


class SearchError(AllocEmbedError):
    """An index cannot be used as asked."""


class OutputError(AllocEmbedError):
    """A result cannot be written."""


class MissingDependency(AllocEmbedError):  # noqa: N818 (named for what is missing)
    """An optional package is not installed.

    >>> str(MissingDependency("reading parquet", "pyarrow", "eval"))
    "reading parquet needs pyarrow: pip install 'allocembed[eval]' (from a checkout: pip install -e '.[eval]')"
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(what, package, extra)
        self.what, self.package, self.extra = what, package, extra

    @classmethod
    def check(cls, what: str, package: str, extra: str) -> None:
        """Raise the error if a package is missing, before work starts that needs it. Nothing is imported."""
        if find_spec(package) is None:
            raise cls(what, package, extra)

    def __str__(self) -> str:
        install = f"pip install 'allocembed[{self.extra}]' (from a checkout: pip install -e '.[{self.extra}]')"
        return f"{self.what} needs {self.package}: {install}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint at the most similar known name, or nothing.

    >>> did_you_mean("unifrom", ["uniform", "base"]), did_you_mean("xyz", ["uniform", "base"])
    (' (did you mean uniform?)', '')
    """
    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {near[0]}?)" if near else ""
