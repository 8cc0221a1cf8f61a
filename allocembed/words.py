"""Numbers and names in sentences."""

import re


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one.

    >>> counted(1, "frame"), counted(1200, "file"), counted(2, "copy")
    ('1 frame', '1,200 files', '2 copies')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def printable(text: str, kept: str = "") -> str:
    """Write out the control characters of a text, except `kept` ones. File names may contain any character.

    >>> print(printable("a\\nb\\x1b[31m.mp4"))
    a\\nb\\x1b[31m.mp4
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: found[0] if found[0] in kept else repr(found[0])[1:-1], text)


def without_passwords(text: str) -> str:
    """A text in which addresses have no passwords.

    >>> without_passwords("postgresql://me:secret@host/db?schema=a is busy"), without_passwords("videos.index")
    ('postgresql://me@host/db?schema=a is busy', 'videos.index')
    >>> without_passwords("postgresql://host/db?password=se%cret&schema=a")
    'postgresql://host/db?schema=a'
    """
    text = re.sub(r"(?i)([?&])(?:ssl)?password=[^&\s]*&?", r"\1", text)
    return re.sub(r"://([^:/@\s]*):\S*@", r"://\1@", text)
