"""Subtitle files beside a video: which belong to it, and the lines they hold. Malformed ones give what can be read."""

import codecs
import html
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from allocembed.files import NONBLOCK
from allocembed.video.clip import is_video

SUFFIXES = (".srt", ".vtt")
LARGEST_SUBTITLES = 4_000_000  # bytes that are read of a file: the subtitles of a day
MOST_LINES_OF_FILE = 50_000  # of one file or stream
MOST_FILES = 16  # beside one video: languages
LONGEST_LINE = 500  # characters
PAUSE_SECONDS = 0.1  # seconds
FEW_BAD_BYTES = 0.1  # bad bytes for each character beyond ASCII in a file that still counts as UTF-8
LONGEST_TIME = 100 * 3600.0  # seconds
CLOCK = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?"
TIMES = re.compile(rf"\s*{CLOCK}\s*-{{1,3}}>\s*{CLOCK}")
MARKUP = re.compile(r"<[^<>]{0,200}>|\{[\\=][^{}]{0,200}\}")
INVISIBLE = re.compile("[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
# Between the name of the video and .srt: a language, and words such as forced or sdh.
LANGUAGE = re.compile(r"(\.[A-Za-z]{2,8}(-[A-Za-z0-9]{2,8})*){0,2}")
# Encodings of old files that are not UTF-8, by language.
OLD_ENCODINGS = {
    **dict.fromkeys(("ru", "rus", "uk", "ukr", "bg", "bul", "sr", "srp"), "cp1251"),
    **dict.fromkeys(("pl", "pol", "cs", "cze", "ces", "sk", "hu", "hun", "hr", "hrv", "sl", "ro", "rum"), "cp1250"),
    **dict.fromkeys(("el", "ell", "gre"), "cp1253"),
    **dict.fromkeys(("tr", "tur"), "cp1254"),
    **dict.fromkeys(("he", "heb"), "cp1255"),
    **dict.fromkeys(("ar", "ara"), "cp1256"),
    **dict.fromkeys(("ja", "jpn"), "cp932"),
    **dict.fromkeys(("ko", "kor"), "cp949"),
    **dict.fromkeys(("zh", "zho", "chi", "zh-cn", "zh-hans"), "gb18030"),
    **dict.fromkeys(("zh-tw", "zh-hant", "zh-hk"), "big5"),
}


@dataclass(frozen=True)
class Line:
    """Words that are said from `start` to `end` seconds."""

    start: float
    end: float
    text: str


def beside(videos: Iterable[str]) -> dict[str, list[str]]:
    """The subtitle files of videos, by the videos' paths; each folder is listed once.

    `talk.srt`, `talk.en.srt` and `talk.mp4.srt` belong to `talk.mp4`. Videos in a folder that cannot be listed are
    absent from the result.
    """
    folders: dict[str, list[str]] = {}
    for video in videos:
        folders.setdefault(str(Path(video).parent), []).append(video)
    found: dict[str, list[str]] = {}
    for folder, inside in folders.items():
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 (names only)
        except OSError:
            continue
        subtitles = [name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
        # A file belongs to the longest name that fits, also if that video is not asked for.
        stems = {Path(name).stem for name in names if is_video(name)} if subtitles else set[str]()
        owners = [(name, _owner(name, stems)) for name in subtitles]
        for video in inside:
            stem, whole = Path(video).stem, Path(video).name
            chosen = [name for name, owner in owners if owner == stem or Path(name).stem == whole]
            found[video] = [str(Path(folder, name)) for name in chosen[:MOST_FILES]]
    return found


def _owner(name: str, stems: set[str]) -> str | None:
    base = Path(name).stem
    fitting = [base.rsplit(".", parts)[0] for parts in (0, 1, 2)]
    return next((stem for stem in fitting if stem in stems and LANGUAGE.fullmatch(base[len(stem) :])), None)


def read_bytes(path: str) -> bytes:
    """The first bytes of a regular file. A FIFO is never waited for."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NONBLOCK)) as file:
        if not S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(None, "it is not a regular file")
        return file.read(LARGEST_SUBTITLES)


def decoded(content: bytes, name: str = "") -> str:
    """The text of a file: UTF-8 or UTF-16 with a mark, UTF-8 without, else what its language was written in.

    A few bad bytes in a file that is UTF-8 otherwise garble only themselves.

    >>> decoded("Tür".encode("cp1252")), decoded("Tür".encode("utf-16")), decoded("мир".encode("cp1251"), "a.ru.srt")
    ('Tür', 'Tür', 'мир')
    """
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if content.startswith(mark):
            return content[2:].decode(encoding, errors="replace")
    try:
        # What is cut off within a character is no sign of another encoding.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(content, final=len(content) < LARGEST_SUBTITLES)
    except UnicodeDecodeError:
        text = content.decode("utf-8-sig", errors="replace")
        bad = text.count("\ufffd")
        if bad <= FEW_BAD_BYTES * (len(text) - sum(map(str.isascii, text)) - bad):
            return text
        language = Path(Path(name).stem).suffix[1:].lower()
        encoding = OLD_ENCODINGS.get(language) or OLD_ENCODINGS.get(language.split("-")[0], "cp1252")
        return content.decode(encoding, errors="replace")


def parse(text: str) -> list[Line]:
    """The lines of an .srt or .vtt file, without markup, in order of time.

    >>> parse("1\\n00:00:01,500 --> 00:00:03,000\\n<i>Hello</i>\\nworld &amp; all\\n\\nNOTE no line")
    [Line(start=1.5, end=3.0, text='Hello world & all')]
    """
    lines: list[Line] = []
    last = ""
    for start, end, rows in _cues(text):
        kept = [row for row in map(plain, rows) if row]
        # Captions that roll up repeat the last row without a pause.
        while kept and lines and kept[0] == last and start - lines[-1].end < PAUSE_SECONDS:
            lines[-1] = Line(lines[-1].start, max(end, lines[-1].end), lines[-1].text)
            kept = kept[1:]
        if kept:
            last = kept[-1]
            lines.append(Line(start, max(start, end), " ".join(kept)[:LONGEST_LINE]))
        if len(lines) >= MOST_LINES_OF_FILE:
            break
    return sorted(lines, key=lambda line: line.start)


def _cues(text: str) -> Iterator[tuple[float, float, list[str]]]:
    """Start, end and rows of each cue."""
    times: tuple[float, float] | None = None
    rows: list[str] = []
    for row in text.splitlines():
        match = TIMES.match(row)
        if match is None and times is None:
            continue
        if match is None and row.strip():
            rows.append(row[: 4 * LONGEST_LINE])
            continue
        if times is not None and match is not None and rows and rows[-1].strip().isdigit():
            rows.pop()  # the number of the next cue, where the empty line is missing
        if times is not None:
            yield *times, rows
        times, rows = None, []
        if match is not None:
            clocks = match.groups()
            start, end = _seconds(clocks[:4]), _seconds(clocks[4:])
            times = (start, end) if start < LONGEST_TIME else None
    if times is not None:
        yield *times, rows


def _seconds(clock: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = clock
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return min(LONGEST_TIME, whole + int((fraction or "0").ljust(3, "0")) / 1000)


def plain(row: str) -> str:
    """One row without markup, entities and invisible characters.

    >>> plain("{\\\\an8}<v Ann><b>I</b> &lt;3 you</v>")
    'I <3 you'
    """
    without = html.unescape(MARKUP.sub("", row))
    return " ".join(INVISIBLE.sub(" ", without).split())
