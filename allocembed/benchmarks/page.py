"""The report as one page that asks nothing of a network: tables, plots, and what some queries found.

Of every task a few queries are shown, missed ones first: the filmstrip of what was ranked first, and where that is
wrong, of what should have been; for a question, the filmstrip of its video and all options.
"""

from __future__ import annotations

import base64
import html
import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image

from allocembed import film
from allocembed.benchmarks.comparison import Comparison, markdown
from allocembed.benchmarks.runner import Outcome, Results
from allocembed.benchmarks.tasks import instruction_for
from allocembed.embedder import AllocEmbed
from allocembed.output import whole_file
from allocembed.video import VideoError

PER_TASK = 4  # queries shown
WIDTH = 1200  # pixels of a filmstrip in the page
LONGEST = 600  # characters of a query shown


@dataclass(frozen=True, eq=False)
class Strip:
    """A filmstrip and what it shows."""

    title: str
    right: bool
    picture: bytes
    """JPEG; empty where the video can't be read any more."""


@dataclass(frozen=True, eq=False)
class Example:
    """One query and what came of it."""

    backbone: str
    method: str
    task: str
    text: str
    right: bool
    strips: list[Strip]
    options: list[tuple[str, bool, bool]]
    """For a question: each option, whether it is right, and whether it was chosen."""


def examples(title: str, embedders: Mapping[str, AllocEmbed], results: Results) -> list[Example]:
    """A few queries of every task as the last method answered them: the learned one, where all six run."""
    label = list(embedders)[-1]
    shown = []
    for outcome in results.outcomes:
        if outcome.row.method == label:
            shown += [_example(title, label, embedders[label], outcome, query) for query in pick(outcome.hits)]
    return shown


def pick(hits: np.ndarray, count: int = PER_TASK) -> list[int]:
    """The first misses and the first hits, half of each where there are enough.

    >>> pick(np.array([1.0, 1, 0, 1, 0, 0, 0]), 4), pick(np.array([1.0, 1, 1, 1, 0]), 4), pick(np.array([0.0]), 4)
    ([2, 4, 0, 1], [4, 0, 1, 2], [0])
    """
    missed, hit = np.flatnonzero(hits < 1).tolist(), np.flatnonzero(hits == 1).tolist()
    misses = max(count // 2, count - len(hit))
    return [*missed[:misses], *hit[: count - len(missed[:misses])]]


def save_page(
    comparisons: Sequence[Comparison], transfer: str, plots: Sequence[Path], shown: Sequence[Example], path: Path
) -> None:
    """Writes the page."""
    template = Template(resources.files("allocembed.benchmarks").joinpath("report.html").read_text(encoding="utf-8"))
    names = ", ".join(dict.fromkeys(comparison.title for comparison in comparisons))
    tables = [transfer] if transfer else []
    tables += [markdown(comparison) for comparison in comparisons]
    filled = template.substitute(
        title=html.escape(f"{comparisons[0].benchmark.name}: {names}"),
        tables="\n".join(map(as_html, tables)),
        plots="\n".join(_inline(plot) for plot in plots if plot.suffix == ".svg"),
        examples="\n".join(map(_card, shown)),
        hidden="" if shown else "hidden",
    )
    with whole_file(path) as scratch:
        scratch.write_text(filled, encoding="utf-8", errors="replace")


def as_html(text: str) -> str:
    """Our own Markdown tables as HTML: a title, a table, a list.

    >>> print(as_html("T\\n\\n| a | b |\\n| --- | ---: |\\n| **1** | *2* |\\n\\n- note\\n"))
    <h2>T</h2>
    <table><tr><th>a</th><th>b</th></tr><tr><td><b>1</b></td><td><i>2</i></td></tr></table>
    <ul><li>note</li></ul>
    """
    parts = []
    for block in text.strip().split("\n\n"):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        if lines and lines[0].startswith("|"):
            rows = [[_mark(cell.strip()) for cell in line.strip("|").split("|")] for line in lines]
            head = "".join(f"<th>{cell}</th>" for cell in rows[0])
            body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[2:])
            parts.append(f"<table><tr>{head}</tr>{body}</table>")
        elif lines and lines[0].startswith("- "):
            parts.append(f"<ul>{''.join(f'<li>{_mark(line[2:])}</li>' for line in lines)}</ul>")
        elif lines:
            parts.append(f"<h2>{_mark(' '.join(lines))}</h2>")
    return "\n".join(parts)


def _mark(text: str) -> str:
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))
    return re.sub(r"\*(.+?)\*", r"<i>\1</i>", text)


def _example(title: str, label: str, embedder: AllocEmbed, outcome: Outcome, query: int) -> Example:
    task, best, target = outcome.task, int(outcome.best[query]), int(outcome.task.targets[query])
    right = outcome.hits[query] == 1
    options: list[tuple[str, bool, bool]] = []
    if task.options is not None:
        strips = [_strip(embedder, task.videos[query], label, task.texts[query], right=True)]
        options = [(text, place == target, place == best) for place, text in enumerate(task.options[query])]
    else:
        places = dict.fromkeys([best, target])
        strips = [_strip(embedder, task.videos[place], label, None, right=place == target) for place in places]
    prompt = instruction_for(task.prompt, embedder.backbone.family).strip()
    return Example(title, label, task.name, f"{prompt} {task.texts[query]}", bool(right), strips, options)


def _strip(embedder: AllocEmbed, source: Path, label: str, text: str | None, *, right: bool) -> Strip:
    try:
        clip = embedder.read(source)
        allocation = embedder.allocate(clip, text)
    except VideoError:
        return Strip(source.name, right, b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "film.png")
        film.save_png(clip, allocation, path, title=source.name, method=label, factor=embedder.backbone.geometry.factor)
        with Image.open(path) as picture:
            small = picture.convert("RGB").resize((WIDTH, round(picture.height * WIDTH / picture.width)))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=72)
    return Strip(source.name, right, buffer.getvalue())


def _inline(plot: Path) -> str:
    """A drawing as part of the page, without the heading that makes it a file."""
    drawing = plot.read_text(encoding="utf-8")
    return f"<figure>{drawing[drawing.index('<svg') :]}</figure>"


def _card(example: Example) -> str:
    text = example.text if len(example.text) <= LONGEST else example.text[:LONGEST].rstrip() + " …"
    verdict = "found" if example.right else "missed"
    strips = "".join(_shown(strip, example) for strip in example.strips)
    options = "".join(
        f'<li class="{"right" if right else ""} {"chosen" if chosen else ""}">{html.escape(option)}</li>'
        for option, right, chosen in example.options
    )
    return (
        f'<article class="{verdict}"><p class="what">{html.escape(example.task)} · {html.escape(example.backbone)} · '
        f"{html.escape(example.method)} · <strong>{verdict}</strong></p><blockquote>{html.escape(text)}</blockquote>"
        f"{f'<ol>{options}</ol>' if options else ''}{strips}</article>"
    )


def _shown(strip: Strip, example: Example) -> str:
    if example.options:
        words = "the video that was asked about"
    elif strip.right:
        words = "ranked first, and right" if example.right else "what should have been ranked first"
    else:
        words = "ranked first, and wrong"
    picture = base64.b64encode(strip.picture).decode()
    image = (
        f'<img alt="" loading="lazy" src="data:image/jpeg;base64,{picture}">' if strip.picture else "<p>unreadable</p>"
    )
    return f"<figure><figcaption>{words}: {html.escape(strip.title)}</figcaption>{image}</figure>"
