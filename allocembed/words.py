"""Numbers in sentences."""


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one.

    >>> counted(1, "frame"), counted(1200, "file"), counted(2, "copy")
    ('1 frame', '1,200 files', '2 copies')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"
