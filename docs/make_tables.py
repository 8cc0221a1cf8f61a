"""Run the commands of the tables in docs, and put what they print into the pages.

    python docs/make_tables.py                # list the commands
    python docs/make_tables.py plan hours     # run those that contain one of these words

A table stands between `<!-- made by COMMAND -->` and `<!-- end -->`. Many commands need a GPU or hours, so only those
that are named run.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent
MADE = re.compile(r"(<!-- made by (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """All pages that may hold tables."""
    return sorted(DOCS.rglob("*.md"))


def commands(page: Path) -> list[str]:
    """The commands of a page's tables."""
    return [command for _, command, _, _ in MADE.findall(page.read_text(encoding="utf-8"))]


def printed(command: str) -> str:
    """What a command prints, run from the root of the repository with this Python."""
    first, *rest = shlex.split(command)
    words = [sys.executable, *rest] if first == "python" else [sys.executable, "-m", first, *rest]
    return subprocess.run(words, cwd=DOCS.parent, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def fill(text: str, command: str, table: str) -> str:
    """A page with a new table for a command.

    >>> fill("<!-- made by python x.py -->\\nold\\n<!-- end -->", "python x.py", "new")
    '<!-- made by python x.py -->\\n\\nnew\\n\\n<!-- end -->'
    """
    return MADE.sub(lambda part: f"{part[1]}\n{table}\n\n{part[4]}" if part[2] == command else part[0], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run the commands that contain one of these")
    words = parser.parse_args().words
    for page in pages():
        for command in commands(page):
            if not any(word in command for word in words):
                print(f"{page.relative_to(DOCS)}: {command}")
                continue
            text = fill(page.read_text(encoding="utf-8"), command, printed(command))
            page.write_text(text, encoding="utf-8")
            print(f"{page.relative_to(DOCS)}: made by {command}")


if __name__ == "__main__":
    main()
