"""Exit with 0 if the server in this container answers, or if another command than `serve` runs in it."""

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path


def find_command(processes: Path = Path("/proc")) -> list[str]:
    """The words of the container's first process."""
    return (processes / "1" / "cmdline").read_bytes().decode(errors="replace").split("\0")


def find_port(command: list[str]) -> int:
    """The port in the words of `serve`.

    >>> find_port(["serve", "--port", "9000"]), find_port(["serve", "--port=9001"]), find_port(["serve"])
    (9000, 9001, 8000)
    """
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "--port":
            return int(following)
        if word.startswith("--port="):
            return int(word.partition("=")[2])
    return 8000


def is_healthy(port: int, token: str) -> bool:
    """Whether the server answers. Without its token, an answer that asks for the token is one too."""
    # The page itself, because the counts of /api/info take long in a large index.
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=8):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 401 and not token
    except OSError:
        return False


if __name__ == "__main__":
    words = find_command()
    sys.exit(0 if "serve" not in words or is_healthy(find_port(words), os.environ.get("ALLOCEMBED_TOKEN", "")) else 1)
