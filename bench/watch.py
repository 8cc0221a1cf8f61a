"""Change a folder at random while `allocembed index --watch` runs: the index ends up equal to one made from scratch.

    python bench/watch.py [--files 100] [--changes 300] [--seed 0] [--kills 0]

Files are added (some slowly, in pieces), changed, renamed, moved between folders, copied and removed, whole folders are
renamed and removed, subtitles come and go, and some files are no videos. With --kills, the watch is killed at random
moments and started again. The exit status is 1 if the two indexes differ.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "bench"))

from torture_parts.churn import Churn, contents, differences  # noqa: E402
from torture_parts.common import INDEX_OPTIONS, Nursery, save_model, save_videos  # noqa: E402

CATCH_UP_SECONDS = 180.0  # seconds for the watch to catch up at the end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100, help="files that there are at most (default 100)")
    parser.add_argument("--changes", type=int, default=300, help="changes in all (default 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0, help="kill the watch so often (default 0)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watch-", ignore_cleanup_errors=True) as name:
        sys.exit(run(Path(name), given.files, given.changes, given.seed, given.kills))


def run(work: Path, files: int, changes: int, seed: int, kills: int) -> int:
    model = save_model(work / "model")
    pool = save_videos(work / "pool", files + files // 2)
    folder, place, scratch = work / "videos", work / "index", work / "scratch"
    folder.mkdir()
    churn = Churn(folder, pool, files, random.Random(seed))
    for _ in range(files // 2):
        churn.add()
    options = ("--backbone", model, *INDEX_OPTIONS)
    source, started = random.Random(seed + 1), time.monotonic()
    with Nursery(work / "logs") as nursery:
        child = nursery.start("index", folder, "--to", place, "--watch", *options)
        logs = [child.log]
        at = set(source.sample(range(changes), min(kills, changes)))
        for number in range(changes):
            churn.step()
            time.sleep(source.uniform(0, 0.4))
            if number in at:
                child.kill()
                nursery.wait(child)
                child = nursery.start("index", folder, "--to", place, "--watch", *options)
                logs.append(child.log)
        churn.wait()
        changed = time.monotonic() - started
        # Nothing is seen to vanish while nothing watches, so what is left over after kills is pruned by hand.
        status, text = nursery.run("index", folder, "--to", scratch, *options, timeout=600)
        assert status in (0, 1), text
        wanted, deadline = contents(scratch), time.monotonic() + CATCH_UP_SECONDS
        found = contents(place)
        while differences(found, wanted, surplus=not kills) and time.monotonic() < deadline:
            time.sleep(0.5)
            found = contents(place)
        caught_up = time.monotonic() - started - changed
        os.kill(child.pid, signal.SIGINT)
        status = nursery.wait(child, 30)
        text = "\n".join(log.read_text(errors="replace") for log in logs)
        if kills:
            _, printed = nursery.run("index", folder, "--to", place, "--prune", *options)
            text += printed
            found = contents(place)
    left = differences(found, wanted)
    print(f"{changes} changes ({', '.join(f'{n} {what}' for what, n in sorted(churn.done.items()))}), {kills} kills")
    print(
        f"{len(wanted)} entries; {changed:.0f} s of changes, caught up after {caught_up:.0f} s; SIGINT: status {status}"
    )
    for line in left[:10]:
        print(line)
    bad = bool(left) or status != 0 or "Traceback" in text or "bug:" in text
    if bad:
        print(text[-3000:])
    print("differs" if bad else "equal to an index made from scratch")
    return int(bad)


if __name__ == "__main__":
    main()
