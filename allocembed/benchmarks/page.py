"""The report as one HTML page that needs no network: tables, plots, and the results of some queries.

A few queries of each task are shown, missed ones first. A query shows the filmstrip of the video ranked first and, if
that is wrong, of the right one. A question shows the filmstrip of its video and all options.
"""

import base64
import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from allocembed import film
from allocembed.benchmarks import report
from allocembed.benchmarks.comparison import Comparison, markdown
from allocembed.benchmarks.runner import EvaluationResults, TaskOutcome
from allocembed.benchmarks.tasks import instruction_for
from allocembed.embedder import AllocEmbed
from allocembed.errors import VideoError
from allocembed.output.files import write_text

PER_TASK = 4  # queries shown
WIDTH = 1200  # pixels of a filmstrip in the page
LONGEST_SHOWN_QUERY = 600  # characters shown of a query


def examples(title: str, embedders: Mapping[str, AllocEmbed], results: EvaluationResults) -> list[dict[str, Any]]:
    """A few queries of each task, as the last method answered them: the learned one, if all methods run."""
    label, embedder = list(embedders.items())[-1]
    outcomes = [outcome for outcome in results.outcomes if outcome.score.method == label]
    return [_example(title, label, embedder, outcome, query) for outcome in outcomes for query in pick(outcome.hits)]


def pick(hits: np.ndarray, count: int = PER_TASK) -> list[int]:
    """The first misses and the first hits, half of each if there are enough.

    >>> pick(np.array([1.0, 1, 0, 1, 0, 0, 0]), 4), pick(np.array([1.0, 1, 1, 1, 0]), 4), pick(np.array([0.0]), 4)
    ([2, 4, 0, 1], [4, 0, 1, 2], [0])
    """
    missed, hit = np.flatnonzero(hits < 1).tolist(), np.flatnonzero(hits == 1).tolist()
    misses = max(count // 2, count - len(hit))
    return [*missed[:misses], *hit[: count - len(missed[:misses])]]


def save_page(
    comparisons: Sequence[Comparison],
    transfer: str,
    plots: Sequence[Path],
    shown: Sequence[Mapping[str, Any]],
    path: Path,
) -> Path:
    """Write the page; `transfer` is the Markdown of the transfer table, if any, and `shown` come from `examples`."""
    from markdown_it import MarkdownIt  # here, because benchmarks run without it

    tables = [transfer] if transfer else []
    tables += [markdown(comparison) for comparison in comparisons]
    names = ", ".join(dict.fromkeys(comparison.title for comparison in comparisons))
    drawings = [plot.read_text(encoding="utf-8") for plot in plots if plot.suffix == ".svg"]
    # Notes hold names of files and models, which must not become markup.
    render = MarkdownIt("commonmark", {"html": False}).enable("table").render
    page = report.render(
        "report.html.j2",
        title=f"{comparisons[0].benchmark.name}: {names}",
        tables=[render(f"## {table}") for table in tables],
        plots=[drawing[drawing.index("<svg") :] for drawing in drawings],
        examples=shown,
        longest=LONGEST_SHOWN_QUERY,
    )
    write_text(path, page)
    return path


def _example(title: str, label: str, embedder: AllocEmbed, outcome: TaskOutcome, query: int) -> dict[str, Any]:
    """A query and its result as the template shows them: for a question, each option, if it is right, if chosen."""
    task, best, target = outcome.task, int(outcome.best[query]), int(outcome.task.targets[query])
    options: list[tuple[str, bool, bool]] = []
    if task.options is not None:
        strips = [_strip(embedder, task.videos[query], label, task.texts[query], right=True)]
        options = [(text, place == target, place == best) for place, text in enumerate(task.options[query])]
    else:
        places = dict.fromkeys([best, target])
        strips = [_strip(embedder, task.videos[place], label, None, right=place == target) for place in places]
    return {
        "backbone": title,
        "method": label,
        "task": task.name,
        "text": f"{instruction_for(task.prompt, embedder.backbone.family).strip()} {task.texts[query]}",
        "right": outcome.hits[query] == 1,
        "strips": strips,
        "options": options,
    }


def _strip(embedder: AllocEmbed, source: Path, label: str, question: str | None, *, right: bool) -> dict[str, Any]:
    """A filmstrip as JPEG in base64, which is empty if the video can no longer be read."""
    strip = {"title": source.name, "right": right, "picture": ""}
    try:
        clip = embedder.read(source)
        allocation = embedder.allocate(clip, embedder.plan(clip, question))
    except VideoError:
        return strip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "film.png")
        film.save_png(clip, allocation, path, title=source.name, method=label, factor=embedder.backbone.geometry.factor)
        with Image.open(path) as picture:
            small = picture.convert("RGB").resize((WIDTH, round(picture.height * WIDTH / picture.width)))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=72)
    return {**strip, "picture": base64.b64encode(buffer.getvalue()).decode()}
