"""The demo: all steps run, a second run reuses the videos, and its words fit what is installed."""

import io
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from rich.console import Console

from allocembed.backbones.registry import REGISTRY, BackboneEntry
from allocembed.errors import MissingDependency, OutputError
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed_nano import demo, world


@pytest.fixture(autouse=True)
def small_videos(monkeypatch):
    monkeypatch.setattr(demo, "SIZE", (72, 96))
    monkeypatch.setattr("allocembed_nano.world.files.USUAL_FRAMES", 60)


def show(out: Path, backbone: str | Path, videos: int) -> tuple[str, list[demo.DemoAnswer]]:
    """The output of the demo, and its searches."""
    printed = io.StringIO()
    console = Console(file=printed, width=100)
    answers = demo.run_demo(out, str(backbone), videos=videos, sample=2, device="cpu", console=console)
    return printed.getvalue(), answers


@pytest.mark.slow
def test_the_demo_runs_from_nothing_and_again_from_what_is_there(nano_tiny, tmp_path):
    printed, answers = show(tmp_path, nano_tiny, videos=3)
    videos = sorted((tmp_path / "videos").glob("*.mp4"))
    assert len(videos) == 3 and len(answers) == 3
    assert all(len(answer.found) == 3 for answer in answers)
    assert f"{sum(answer.right for answer in answers)} of 3 sentences" in printed
    assert re.search(r"tokens of (toy-0[123]\.mp4) went", printed)[1] in (tmp_path / "film.html").read_text()
    assert "1.000× = 8 frames at native size" in printed
    assert "NanoRet" in printed and "allocembed embed" in printed and str(tmp_path / "videos")[:20] in printed

    assert (tmp_path / ".gitignore").read_text() == "*\n", "the folder stays out of the repository it may be in"

    (tmp_path / ".gitignore").write_text("*.mp4\n")
    written = [video.stat().st_mtime_ns for video in videos]
    again, same = show(tmp_path, nano_tiny, videos=3)
    assert [video.stat().st_mtime_ns for video in videos] == written and "3 of them from an earlier run" in again
    assert [answer.found for answer in same] == [answer.found for answer in answers]
    assert (tmp_path / ".gitignore").read_text() == "*.mp4\n", "rules of the user's own are kept"


@pytest.mark.slow
def test_the_demo_hides_no_folder_of_somebody_else_from_git(nano_tiny, tmp_path):
    (tmp_path / "main.py").touch()
    show(tmp_path, nano_tiny, videos=2)
    assert not (tmp_path / ".gitignore").exists()


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
def test_the_demo_says_what_search_needs_only_where_it_is_missing(nano_tiny, tmp_path, monkeypatch, missing):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if missing and name == "lancedb" else object())
    printed, _ = show(tmp_path, nano_tiny, videos=2)
    assert ("  pip install -e '.[search]' && allocembed index" in printed) == missing and "allocembed index" in printed


@pytest.mark.slow
def test_the_demo_shows_the_bundled_allocator_beside_the_others(nano_tiny, tmp_path, monkeypatch):
    module = FrameModuleConfig(visual_width=64, text_width=64, width=16, heads=2, layers=1)
    ScalePolicy(PolicyConfig(module, "backbone", "nano-qwen3")).save_pretrained(tmp_path / "policy")
    entry = BackboneEntry(str(nano_tiny), "qwen3_vl", allocator=str(tmp_path / "policy"))
    monkeypatch.setitem(REGISTRY, "nano-qwen3", entry)
    printed, _ = show(tmp_path, "nano-qwen3", videos=2)
    assert "embedded by learned" in printed and "\nlearned" in printed and "\ncontent" in printed


@pytest.mark.slow
def test_steps_are_on_stderr_and_results_on_stdout(nano_tiny, tmp_path, monkeypatch, capsys):
    steps = io.StringIO()
    monkeypatch.setattr(demo, "stderr", Console(file=steps, width=100))
    demo.run_demo(tmp_path, str(nano_tiny), videos=2, sample=2, device="cpu")
    results = capsys.readouterr().out
    assert "is loaded" in steps.getvalue() and "is loaded" not in results
    assert "NanoRet" in results and "NanoRet" not in steps.getvalue()


@pytest.mark.slow
def test_the_demo_serves_the_page_with_the_sentence_that_stands_out_most(nano_tiny, tmp_path, monkeypatch):
    pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
    served = []
    monkeypatch.setattr(
        "allocembed.search.web.server.run", lambda index, host, port, token, show: served.append((index, host, show))
    )
    printed = io.StringIO()
    console = Console(file=printed, width=100)
    answers = demo.run_demo(tmp_path, str(nano_tiny), videos=2, serve=True, device="cpu", console=console)
    (index, host, show), best = served[0], max(answers, key=lambda answer: answer.lead)
    assert index.info()["videos"] == 2 and host == "127.0.0.1" and parse_qs(show[1:]) == {"q": [best.query]}
    assert "an index of the videos" in printed.getvalue() and "NanoRet" not in printed.getvalue()


def test_the_demo_asks_for_the_search_packages_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "lancedb" else object())
    with pytest.raises(MissingDependency, match="lancedb"):
        demo.run_demo(tmp_path / "out", serve=True)
    assert not (tmp_path / "out").exists()


def test_one_progress_goes_on_from_step_to_step():
    steps = demo._Steps(Console(file=io.StringIO()))
    seen = []
    for name in ("load", "write", "embed", "search", "film", "compare"):
        with steps.step(name, "working") as step:
            step.update(1, 2)
            seen.append(steps.line.done)
        seen.append(steps.line.done)
    assert seen == sorted(seen) and seen[-1] == 100


def test_the_video_whose_tokens_differ_most_is_shown():
    def embedding(*tokens: int):
        grids = [SimpleNamespace(tokens=each) for each in tokens]
        return SimpleNamespace(allocation=SimpleNamespace(grids=grids))

    assert demo.most_varied([embedding(16, 16, 16), embedding(1, 40, 7), embedding(10, 20, 18)]) == 1


def test_the_demo_writes_only_the_videos_it_lacks(tmp_path):
    timelines = world.draw(2, seed=0, orientation="mixed")
    counts = []

    def written() -> int:
        return demo.make_videos(timelines, tmp_path, lambda *count: counts.append(count))[1]

    assert (written(), written()) == (2, 0) and counts == [(1, 2), (2, 2)]
    (tmp_path / "toy-02.mp4").unlink()
    assert written() == 1
    (tmp_path / demo.STAMP).write_text("another version")
    assert written() == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [demo.STAMP, "toy-01.mp4", "toy-02.mp4"]


def test_videos_that_cannot_be_written_are_an_error_of_the_place(tmp_path):
    (tmp_path / "videos").write_text("a file, not a folder")
    with pytest.raises(OutputError, match=r"cannot write .*videos"):
        demo.make_videos(world.draw(1, seed=0), tmp_path / "videos", lambda done, total: None)
