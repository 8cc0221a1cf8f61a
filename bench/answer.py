"""How long the first sentence takes, and how much of the checkpoint is read for it: the text half and the whole model.

    python bench/answer.py [--model qwen3-vl-2b] [--tiny] [--folder FOLDER] [--repeats 3]

A checkpoint of the exact layout is written with random weights, or taken from --folder. Each way runs in a process of
its own, from the import to the vector, first with a cold and then with a warm file cache. "Read" are the bytes that the
process read from the disk while the cache was cold.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHILD = """
import json, sys, time
started = time.monotonic()
way, folder = sys.argv[1:3]
sentence, instruction = "a dog jumps into a lake", "Find a video that contains the following visual content."
if way == "half":
    from allocembed.backbones.text_half import load_text_half
    vector = load_text_half(folder, device="cpu").vector(sentence, instruction)
else:
    from allocembed.backbones.base import Item, Prompt
    from allocembed.backbones.loading import load_backbone
    vector = load_backbone(folder, device="cpu").embed([Item(Prompt(sentence, instruction))]).numpy()[0]
io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(json.dumps([time.monotonic() - started, int(io["read_bytes"]), vector.tobytes().hex()]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-vl-2b")
    parser.add_argument("--tiny", action="store_true", help="a miniature of the same kind")
    parser.add_argument("--folder", type=Path, help="a checkpoint, instead of one with random weights")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="answer-") as made:
        folder = given.folder or write_checkpoint(given.model, Path(made), given.tiny)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        print(f"{folder.name if given.folder else given.model}: {size / 1e6:,.0f} MB of weights")
        vectors = set()
        for way in ("half", "whole"):
            forget(folder)
            cold, read, vector = run(way, folder)
            vectors.add(vector)
            warm = min(run(way, folder)[0] for _ in range(given.repeats))
            print(f"{way:>5}: {read / 1e6:8,.0f} MB read, {cold:6.2f} s cold, {warm:6.2f} s warm")
        print("the vectors are equal bit for bit" if len(vectors) == 1 else "the vectors differ")
        sys.exit(len(vectors) != 1)


def write_checkpoint(model: str, folder: Path, tiny: bool) -> Path:
    """A checkpoint with random weights, written by another process, so that this one stays small."""
    code = (
        "import sys, torch; sys.path.insert(0, 'bench'); from shapes import make_config, make_model, make_tokenizer\n"
        f"tokenizer = make_tokenizer(); config = make_config({model!r}, tokenizer, tiny={tiny})\n"
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        f"model = make_model({model!r}, config, device, torch.bfloat16, tiny={tiny})\n"
        f"model.save_pretrained({str(folder)!r}); tokenizer.save_pretrained({str(folder)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment())
    return folder


def forget(folder: Path) -> None:
    """Drop the files of a checkpoint from the file cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(way: str, folder: Path) -> tuple[float, int, str]:
    words = [sys.executable, "-c", CHILD, way, str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT, env=environment())
    seconds, read, vector = json.loads(done.stdout.splitlines()[-1])
    return seconds, read, vector


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}


if __name__ == "__main__":
    main()
