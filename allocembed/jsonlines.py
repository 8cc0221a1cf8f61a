"""Read JSON and files of one JSON value per line, and distinguish one bad line from a bad file."""

import json
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1.

    Only a line feed ends a line: a text may contain other separators, such as U+2028. Lines are decoded one by one in
    `parse_json`, so that a wrong byte costs its own line only.
    """
    return [(number, line) for number, line in enumerate(path.read_bytes().split(b"\n"), 1) if line.strip()]


def parse_json(line: bytes) -> Any:
    """Parse UTF-8 JSON, with or without a byte order mark; a ValueError says why a value cannot be used.

    >>> parse_json('\\ufeff{"caption": "a dog"}'.encode())
    {'caption': 'a dog'}
    >>> parse_json(b'{"caption": "half an emoji: \\\\ud83d"}')
    Traceback (most recent call last):
    ValueError: it has half of a surrogate pair, which is not valid Unicode
    """
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    try:
        value = json.loads(text)
        if "\\u" in text:  # only an escape can be half of a pair
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg.lower()} at character {error.pos + 1})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a surrogate pair, which is not valid Unicode") from error
    return value
