"""Questions about paths that somebody has typed: they may be too long, or in a folder that may not be entered."""

import os
from pathlib import Path


def absolute(path: str | Path) -> Path:
    """Write a path from the root on, without . and .., so that a file has one name.

    >>> absolute("a/../b.mp4") == Path.cwd() / "b.mp4"
    True
    """
    return Path(os.path.abspath(path))  # noqa: PTH100 (Path.absolute keeps ..)


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there and can be looked at.

    >>> is_folder("."), is_folder("x" * 1000)
    (True, False)
    """
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def why_absent(path: str | Path) -> str | None:
    """Why nothing can be read at a path, and what to do; None if something is there.

    >>> why_absent("."), why_absent("nothing.mp4")
    (None, 'no such file or folder; check the path')
    """
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "no such file or folder; check the path"
    except (OSError, ValueError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error}); check the path and its permissions"
    return None
