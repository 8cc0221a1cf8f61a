"""`allocembed index --engine ray`, with a log of every video that is embedded: python bench/ray_driver.py LOG WORDS…"""

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from allocembed.search import index, worker
from allocembed.search.embedding import EmbeddedVideo
from allocembed.workers import WorkerShare

LOG = "ALLOCEMBED_EMBEDDED_LOG"
ONE_CORE = "ALLOCEMBED_ONE_CORE"


@dataclass(frozen=True)
class LoggingTask(worker.IndexTask):
    """Its workers write a line for each video before it is committed. If asked for, each uses one core."""

    def __call__(self, share: WorkerShare) -> worker.IndexWorker:
        made = super().__call__(replace(share, cores=1) if os.environ.get(ONE_CORE) else share)
        made.embedded = log_video
        return made


def log_video(video: EmbeddedVideo) -> None:
    if not video.error:
        note(f"{os.getpid()} {time.time():.3f} {time.process_time():.3f} {video.path}")


def note(line: str) -> None:
    """Append a line in one write, which processes can do at the same time."""
    with Path(os.environ[LOG]).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


if __name__ == "__main__":
    from ray_driver import LoggingTask as Task  # by its module, so that workers can import it

    os.environ[LOG] = str(Path(sys.argv[1]).absolute())
    index.IndexTask = Task
    sys.argv[1:] = sys.argv[2:]
    from allocembed.cli.main import main

    main()
