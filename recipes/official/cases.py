"""The cases: which video or text, and how ours is called for it.

A video case has a size, the frames of the source (`total`), how many are wanted (`count`), whether they come as a
`file` or as a `list` of frames, and the rate of the file. `question` and `instruction` are the arguments of ours.
`differs` says what the official code does where ours deliberately does something else. `vector` is False where only
the inputs are compared.
"""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]

SENTENCE = "A person in a grey jumper throws a ball, and the dog fetches it from the snow."
QUESTION = "What does the dog fetch?"
INSTRUCTION = "Retrieve videos that answer the question"
SPECIAL = "<|im_end|>\n<|im_start|>user\nhello <|endoftext|> <|vision_start|> <|image_pad|>"
SIZES = {
    "144p": (256, 144),
    "240p": (320, 240),
    "360p": (640, 360),
    "720p": (1280, 720),
    "1080p": (1920, 1080),
    "4k": (3840, 2160),
    "portrait": (360, 640),
    "odd": (333, 251),
    "aligned": (896, 448),  # native as it is, so that nothing is resized
    "small aligned": (448, 224),
    # native as they are for EmbeddingGemma 2, whose frames fill their limit
    "70 tokens": (480, 336),
    "140 tokens": (672, 480),
    "280 tokens": (960, 672),
}
LONG = 9000  # letters and blanks, each a token of its own


def video(source: str, size: str, count: int, total: int | None = None, name: str = "", **more: Any) -> Case:
    """A video case. A list of frames has as many as are wanted, unless `total` says otherwise."""
    width, height = SIZES[size]
    about = {"name": name or f"{source} {size} {count}", "source": source, "width": width, "height": height}
    rate = {"rate": more.pop("rate", "8")} if source == "file" else {}
    return {**about, "total": total or count, "count": count, **rate, **more}


def picture_cases(*, few: bool = False) -> list[Case]:
    """Pictures of every model; few for a second checkpoint, or where every picture gets the same size."""
    sizes = ("240p", "360p", "720p", "1080p", "portrait", "odd", "small aligned")
    # What the official attention needs for a picture of 1,800 tokens is too much for a light test.
    large = {"720p", "1080p"}
    alone = [video("picture", size, 1, name=f"picture {size}", vector=size not in large) for size in sizes]
    asked = video("picture", "240p", 1, name="picture with text", question=QUESTION)
    both = video("picture", "240p", 1, name="picture with both", question=QUESTION, instruction=INSTRUCTION)
    cases = [*alone, asked, both]
    return [case for case in cases if case["name"] in ("picture 240p", "picture odd", "picture with both") or not few]


def text_cases() -> list[Case]:
    """Texts of the Qwen3 models."""
    return [
        {"name": "text", "text": SENTENCE},
        {"name": "text, other scripts", "text": "Ein Hund läuft. 狗在雪地里跑。🐕"},
        {"name": "text with instruction", "text": SENTENCE, "instruction": "Find a video that shows this."},
        {"name": "text, instruction without punctuation", "text": SENTENCE, "instruction": "  Find the video "},
        {"name": "text, instruction that asks", "text": SENTENCE, "instruction": "Which video is it?"},
        {"name": "text with special tokens", "text": SPECIAL},
        {"name": "text with blanks around", "text": "  two blanks, and a line end \n"},
        {"name": "empty text", "text": ""},
        {"name": "text over 8,192 tokens", "long": LONG},
        {"name": "text over 8,192 tokens with instruction", "long": LONG, "instruction": "Find the video"},
    ]


def qwen3_cases() -> list[Case]:
    """All cases of Qwen3-VL-Embedding."""
    files = [
        video("file", "144p", 8, 37),
        video("file", "144p", 24, 101),
        video("file", "240p", 8, 37),
        video("file", "240p", 4, 5, name="file 240p, 4 of 5"),
        video("file", "360p", 8, 37, rate="30000/1001"),
        video("file", "360p", 24, 59),
        video("file", "720p", 8, 11),
        video("file", "720p", 24, 24, max_length=32768),
        video("file", "1080p", 4, 5),
        video("file", "4k", 2, 2),
        video("file", "portrait", 8, 37, rate="25"),
        video("file", "odd", 8, 37),
        video("file", "odd", 10, 10, name="file odd, times at ties", rate="10"),
        video("file", "aligned", 4, 5),
        video("file", "144p", 24, 192, name="file, 24 s, official defaults", official_defaults=True),
        video("file", "144p", 64, 96, name="file 144p 64"),
    ]
    lists = [
        video("list", "144p", 1),
        video("list", "144p", 5),
        video("list", "144p", 8, 37),
        video("list", "144p", 24),
        video("list", "240p", 8),
        video("list", "240p", 24, 64),
        video("list", "360p", 1),
        video("list", "360p", 5),
        video("list", "360p", 24),
        video("list", "720p", 5),
        video("list", "720p", 24),
        video("list", "1080p", 8),
        video("list", "4k", 1),
        video("list", "4k", 2),
        video("list", "portrait", 8),
        video("list", "odd", 5),
        video("list", "odd", 24),
        video("list", "aligned", 5),
    ]
    with_texts = [
        video("file", "240p", 8, 37, name="file with text", question=QUESTION),
        video("file", "240p", 8, 37, name="file with instruction", instruction=INSTRUCTION),
        video("file", "240p", 8, 37, name="file with both", question=QUESTION, instruction=INSTRUCTION),
        video("list", "240p", 5, name="list with text", question=QUESTION),
        video("list", "240p", 5, name="list with instruction", instruction=INSTRUCTION),
        video("list", "240p", 5, name="list with special tokens", question="hello <|im_end|> <|endoftext|>"),
        video("list", "240p", 5, name="list with empty text", question=""),
        video("list", "240p", 5, name="list, text over 8,192 tokens", long=LONG),
    ]
    apart = [
        video("file", "240p", 1, 1, name="file of 1 frame", differs="read as the text NULL"),
        video("file", "720p", 24, 24, name="file 720p 24, official limit", vector=False, differs="refused"),
    ]
    return [*text_cases(), *files, *lists, *with_texts, *apart]


def qwen3_few() -> list[Case]:
    """Cases for a second configuration, where only the checkpoint or the layout differs."""
    names = {
        "text",
        "text with instruction",
        "text with special tokens",
        "empty text",
        "text over 8,192 tokens",
        "file 240p 8",
        "file odd 8",
        "file aligned 4",
        "list 144p 1",
        "list 240p 8",
        "list 360p 5",
        "list aligned 5",
        "file with both",
        "list, text over 8,192 tokens",
    }
    return [case for case in qwen3_cases() if case["name"] in names]


def vlm2vec_texts() -> list[Case]:
    """Texts of VLM2Vec."""
    return [
        {"name": "text", "text": SENTENCE},
        {"name": "text, other scripts", "text": "Ein Hund läuft. 狗在雪地里跑。🐕"},
        {
            "name": "text with instruction",
            "text": SENTENCE,
            "instruction": "Find a video that contains the following visual content:",
        },
        {"name": "text, instruction without punctuation", "text": SENTENCE, "instruction": "Find the video"},
        {"name": "text with special tokens", "text": SPECIAL},
        {"name": "text over 8,192 tokens", "long": LONG},
        {"name": "empty text", "text": "", "differs": "refused"},
    ]


def vlm2vec_cases() -> list[Case]:
    """All cases of VLM2Vec-V2, whose own pipeline reads folders of frames only."""
    cases = [
        video("list", "144p", 1),
        video("list", "144p", 5),
        video("list", "144p", 8, 37),
        video("list", "144p", 24, 64),
        video("list", "240p", 5),
        video("list", "240p", 8, 37),
        video("list", "240p", 24),
        video("list", "360p", 1),
        video("list", "360p", 8, 64),
        video("list", "360p", 24),
        video("list", "720p", 5),
        video("list", "720p", 8),
        video("list", "1080p", 2),
        video("list", "4k", 1),
        video("list", "4k", 2),
        video("list", "portrait", 8),
        video("list", "odd", 5),
        video("list", "odd", 24),
        video("list", "aligned", 5),
        video("file", "144p", 8, 37),
        video("file", "240p", 5, 37),
        video("file", "odd", 8, 64),
        video("list", "240p", 8, name="list with text", question=QUESTION),
        video("list", "240p", 8, name="list with instruction", instruction=INSTRUCTION),
        video("list", "240p", 8, name="list with both", question=QUESTION, instruction=INSTRUCTION),
    ]
    return [*vlm2vec_texts(), *cases]


def vlm2vec_v1_cases() -> list[Case]:
    """Cases of VLM2Vec-Qwen2VL-7B, whose evaluation makes every frame 980 × 980 pixels: few frames suffice."""
    cases = [
        video("list", "144p", 1),
        video("list", "240p", 2),
        video("list", "240p", 5, 37),
        video("list", "360p", 2),
        video("list", "720p", 2),
        video("list", "720p", 24, vector=False),  # the official attention needs 28 GB for its mask
        video("list", "1080p", 1),
        video("list", "4k", 1),
        video("list", "portrait", 2),
        video("list", "odd", 2),
        video("file", "144p", 2, 37),
        video("list", "240p", 2, name="list with both", question=QUESTION, instruction=INSTRUCTION),
    ]
    return [*(case for case in vlm2vec_texts() if "long" not in case), *cases]


def demo_cases() -> list[Case]:
    """Cases of the demos of both VLM2Vec generations, which read a file at one frame per second."""
    words = {"instruction": "Represent the given video."}
    return [
        video("file", "144p", 8, 64, **words),
        video("file", "240p", 4, 32, **words),
        video("file", "360p", 8, 64, **words),
        video("file", "720p", 4, 32, **words),
        video("file", "1080p", 4, 32, **words),
        video("file", "portrait", 8, 64, **words),
        video("file", "odd", 8, 67, **words),
        video("file", "small aligned", 4, 32, **words),
    ]


def gemma_cases() -> list[Case]:
    """All cases of EmbeddingGemma 2. An empty instruction is no prompt; without one it is the prompt of documents."""
    query, ask = "task: search result | query: ", "task: question answering | query: "
    texts = [
        {"name": "text, document", "text": SENTENCE},
        {"name": "text, query", "text": SENTENCE, "instruction": query},
        {"name": "text, another prompt", "text": SENTENCE, "instruction": ask},
        {"name": "text, no prompt", "text": SENTENCE, "instruction": ""},
        {"name": "text, other scripts", "text": "Ein Hund läuft. 狗在雪地里跑。🐕"},
        {"name": "text with special tokens", "text": "hello <eos> <|image> <bos>"},
        {"name": "text with blanks around", "text": "  two blanks, and a line end \n"},
        {"name": "empty text", "text": ""},
        {"name": "text of 150 words", "text": " ".join(["ox", "fly", "goat"] * 50)},
    ]
    files = [
        video("file", "144p", 8, 37),
        video("file", "144p", 12, 64),
        video("file", "240p", 8, 37),
        video("file", "360p", 4, 11, rate="30000/1001"),
        video("file", "720p", 2, 5),
        video("file", "1080p", 2, 3),
        video("file", "portrait", 4, 11, rate="25"),
        video("file", "odd", 4, 37),
        video("file", "140 tokens", 2, 5),
        video("file", "240p", 1, 1, name="file of 1 frame"),
    ]
    lists = [
        video("list", "144p", 1),
        video("list", "144p", 8, 37),
        video("list", "240p", 5),
        video("list", "360p", 5),
        video("list", "720p", 2),
        video("list", "4k", 1),
        video("list", "portrait", 5),
        video("list", "odd", 5),
        video("list", "140 tokens", 2),
    ]
    with_texts = [
        video("file", "240p", 2, 5, name="file with text", question=QUESTION),
        video("file", "240p", 2, 5, name="file with prompt", instruction=query),
        video("file", "240p", 2, 5, name="file, no prompt", instruction=""),
        video("list", "240p", 2, name="list with both", question=QUESTION, instruction=ask),
    ]
    sizes = ("144p", "360p", "1080p", "portrait", "odd", "280 tokens")
    pictures = [video("picture", size, 1, name=f"picture {size}") for size in sizes]
    pictures.append(video("picture", "240p", 1, name="picture with both", question=QUESTION, instruction=query))
    return [*texts, *files, *lists, *with_texts, *pictures]


def gemma_few(inputs: str) -> list[Case]:
    """Cases for another size, or for times before the frames, which a list without a rate cannot have."""
    if inputs == "timestamps":
        long = video("file", "144p", 4, 90, name="file over a minute", rate="1")
        return [video("file", "144p", 8, 37), long, video("file", "240p", 2, 37, name="with text", question=QUESTION)]
    return [
        video("file", "144p", 2, 5),
        video("file", "720p", 2, 3),
        video("list", "odd", 2),
        video("list", "portrait", 2),
        video("list", inputs.replace("-", " "), 2, name="list, native"),
    ]


def qwen25_cases() -> list[Case]:
    """All cases of Qwen2.5-VL. Its own processor spreads the frames of a file otherwise, so files are read whole."""
    texts = [case for case in text_cases() if "long" not in case and "punctuation" not in case["name"]]
    sources = [
        video("list", "144p", 1),
        video("list", "144p", 5),
        video("list", "240p", 8),
        video("list", "360p", 5),
        video("list", "720p", 2),
        video("list", "portrait", 4),
        video("list", "odd", 5),
        video("list", "small aligned", 6),
        video("file", "144p", 8, rate="1"),
        video("file", "240p", 8, rate="2"),
        video("file", "odd", 6, rate="1"),
        video("file", "small aligned", 4, rate="2"),
        video("file", "240p", 4, name="file with text", question=QUESTION, rate="2"),
        video("list", "240p", 4, name="list with both", question=QUESTION, instruction=INSTRUCTION),
    ]
    return [*texts, *sources]


def qwen25_few() -> list[Case]:
    """Cases for the newer rule of positions, and of files whose chunks are not whole seconds apart."""
    kept = ("text", "list 144p 5", "list small aligned 6", "file 240p 8", "list with both")
    cases = [case for case in qwen25_cases() if case["name"] in kept]
    return [*cases, video("file", "144p", 8, rate="5"), video("picture", "240p", 1, name="picture 240p")]
