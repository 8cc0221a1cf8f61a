"""Small MMEB-V2 datasets: annotations, frames and archives under their published names."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from tests.clips import picture

OLD, NEW = "video_ret/data/ziyan/video_retrieval/{task}/frames", "video-tasks/frames/{kind}/{task}"
FILES = {
    "MSR-VTT": "msrvtt_test_1k.json",
    "MSVD": "msvd_test.json",
    "DiDeMo": "didemo_test.json",
    "YouCook2": "data/val-00000-of-00001.parquet",
    "VATEX": "vatex_test/test-00000-of-00001.parquet",
    "Video-MME": "videomme/test-00000-of-00001.parquet",
    "NExTQA": "MC/test-00000-of-00001.parquet",
    "EgoSchema": "Subset/test-00000-of-00001.parquet",
    "MVBench": "json/action_sequence.json",
    "ActivityNetQA": "data/test-00000-of-00001.parquet",
}
"""The file of each task's annotations in its hub repository; MVBench has one for each of its 20 subsets."""

# One line as published, its prompt and its text, and what is embedded of its options.
LINES: dict[str, tuple[dict, str, list[str], int]] = {
    "MSR-VTT": (
        {"video_id": "video7020", "video": "video7020.mp4", "caption": "a woman creating a fondant baby"},
        "a woman creating a fondant baby",
        [],
        0,
    ),
    "MSVD": (
        {"video_id": "mv89psg6zh4_33_46", "video": "mv89psg6zh4_33_46.avi", "caption": ["a bird in a sink", "a bird"]},
        "a bird in a sink",
        [],
        0,
    ),
    "DiDeMo": (
        {"video": "didemo/54322086@N00_2408598493_274c77d26a.avi", "caption": "the player begins to run. a ball"},
        "the player begins to run. a ball",
        [],
        0,
    ),
    "YouCook2": (
        {"id": "xHr8X2Wpmno_0", "video_path": "YouCookIIVideos/val/113/xHr8X2Wpmno_0.mp4", "sentence": "pick the ends"},
        "pick the ends",
        [],
        0,
    ),
    "VATEX": (
        {"videoID": "-_hbPLsZvvo_000211_000221", "enCap": ["A man is talking", "Someone speaks"], "chCap": ["一"]},
        "A man is talking",
        [],
        0,
    ),
    "Video-MME": (
        {
            "videoID": "fFjv93ACGo8",
            "question": "Which fruit is shown?",
            "options": ["A. Apples.", "B. 3.5 pears.", "C. Candles.", "D. Berries."],
            "answer": "C",
            "question_id": "001-1",
            "domain": "Knowledge",
            "sub_category": "Humanity",
        },
        "Which fruit is shown?\nA. Apples.\nB. 3.5 pears.\nC. Candles.\nD. Berries.",
        ["Apples", "3.5 pears", "Candles", "Berries"],
        2,
    ),
    "NExTQA": (
        {
            "video": 4882821564,
            "question": "why did the boy clap",
            "answer": 4,
            "qid": 3,
            "type": "CW",
            **{f"a{i}": text for i, text in enumerate(["unhappy", "for fun", "dance", "excited", "hot"])},
        },
        "why did the boy clap\nOptions:\n(A) unhappy\n(B) for fun\n(C) dance\n(D) excited\n(E) hot",
        ["unhappy", "for fun", "dance", "excited", "hot"],
        4,
    ),
    "EgoSchema": (
        {
            "video_idx": "0074f737-11cb-497d-8d07-77c3a8127391",
            "question": "What is C doing?",
            "option": ["A. C is cooking.", "B. C is washing.", "C. C reads.", "D. C sews.", "E. C rests."],
            "answer": "3",
            "question_idx": "0",
        },
        "What is C doing?A. C is cooking. B. C is washing. C. C reads. D. C sews. E. C rests.",
        ["C is cooking", "C is washing", "C reads", "C sews", "C rests"],
        3,
    ),
    "MVBench": (
        {"video": "ZS9XR.mp4", "question": "What happened?", "candidates": ["Ate it.", "Took."], "answer": "Took."},
        "What happened?\nOptions:\n(A) Ate it.\n(B) Took.",
        ["(A) Ate it.", "(B) Took."],
        1,
    ),
    "ActivityNetQA": (
        {"video_name": "1QIUV7WYKXg", "question": "is the athlete in trousers", "answer": "no", "question_id": "q1"},
        "is the athlete in trousers? (A) yes; (B) no.",
        ["yes", "no"],
        1,
    ),
}  # fmt: skip
FOLDERS = {
    "MSR-VTT": "video7020",
    "MSVD": "mv89psg6zh4_33_46",
    "DiDeMo": "54322086@N00_2408598493_274c77d26a",
    "YouCook2": "xHr8X2Wpmno_0",
    "VATEX": "-_hbPLsZvvo_000211_000221",
    "Video-MME": "fFjv93ACGo8",
    "NExTQA": "4882821564",
    "EgoSchema": "0074f737-11cb-497d-8d07-77c3a8127391",
    "MVBench": "action_sequence/ZS9XR.mp4",
    "ActivityNetQA": "v_1QIUV7WYKXg",
}
"""The frame folder of each line's video, as published."""


def write_lines(root: Path, task: str, lines: Sequence[Mapping], where: str | None = None) -> Path:
    """Annotations as the hub's repository has them, in the folder that `hf download` is told."""
    path = root / "annotations" / task / (where or FILES[task])
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(list(lines)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(list(lines)))
    else:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_frames(folder: Path, frames: Sequence[np.ndarray] | int = 10, first: int = 0) -> Path:
    """Frames as published: frame_0001.jpg and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(frames, int):
        frames = [picture(first * 17 + index, 112, 84) for index in range(frames)]
    for number, pixels in enumerate(frames, 1):
        Image.fromarray(pixels).save(folder / f"frame_{number:04}.jpg", quality=92)
    return folder


def write_retrieval(root: Path, task: str, videos: int, layout: str = NEW) -> None:
    """A small retrieval task: a number of videos with one caption each."""
    columns = {"MSR-VTT": ("video_id", "caption"), "VATEX": ("videoID", "enCap")}[task]
    lines = []
    for number in range(videos):
        caption = f"caption number {number}"
        lines.append(dict(zip(columns, (f"v{number}", [caption] if task == "VATEX" else caption), strict=True)))
        write_frames(root / layout.format(kind="video_ret", task=task) / f"v{number}", first=number)
    write_lines(root, task, lines)


def write_questions(root: Path, questions: int, videos: int = 2) -> None:
    """A small NExTQA."""
    lines = []
    for number in range(questions):
        options = {f"a{i}": f"option {i} of {number}" for i in range(5)}
        lines.append(
            {"video": 100 + number % videos, "question": f"what is {number}", "answer": number % 5, "qid": number}
        )
        lines[-1] |= options | {"type": "CW"}
    for number in range(videos):
        write_frames(root / NEW.format(kind="video_qa", task="NExTQA") / str(100 + number), first=50 + number)
    write_lines(root, "NExTQA", lines)


def write_published(root: Path, subsets: Sequence[str], work: Path) -> None:
    """All ten tasks with one query each, one of every subset for MVBench, as `hf download` leaves them.

    The frames are in the published archives, not unpacked: video_ret has its tasks in data/ziyan/video_retrieval, and
    video_qa is cut in parts. EgoSchema's folder is in lower case.
    """
    count = 0
    for task, (line, _, options, _) in LINES.items():
        names = [FOLDERS[task]] if task != "MVBench" else [f"{subset}/{line['video']}" for subset in subsets]
        for name in names:
            folder = work / ("video_qa/{task}" if options else OLD).format(task=task) / name
            write_frames(Path(str(folder).replace("EgoSchema", "egoschema")), 4, first=count)
            count += 1
        for subset in subsets if task == "MVBench" else [""]:
            write_lines(root, task, [line], f"json/{subset}.json" if subset else None)
    archives = root / "video-tasks" / "frames"
    archives.mkdir(parents=True)
    with tarfile.open(archives / "video_ret.tar.gz", "w:gz") as archive:
        archive.add(work / "video_ret" / "data", "data")
    with tarfile.open(work / "video_qa.tar.gz", "w:gz") as archive:
        archive.add(work / "video_qa", "video_qa")
    whole = (work / "video_qa.tar.gz").read_bytes()
    for number in range(5):
        part = whole[len(whole) * number // 5 : len(whole) * (number + 1) // 5]
        (archives / f"video_qa.tar.gz-0{number}").write_bytes(part)


def write_timed_video(path: Path, seconds: float, frames: int = 60) -> Path:
    """A video of exactly that duration, in few frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = frames / Fraction(seconds).limit_denominator(1000)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(index))))
        container.mux(stream.encode(None))
    return path
