"""`allocembed index --engine ray`, with a log of every video that is embedded: python bench/ray_driver.py LOG WORDS…"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from allocembed.config import EmbedConfig
from allocembed.scale import indexing
from allocembed.search.embedding import EmbeddedVideo

LOG = "ALLOCEMBED_EMBEDDED_LOG"
ONE_CORE = "ALLOCEMBED_ONE_CORE"


class LoggingWorker(indexing.IndexWorker):
    """Writes a line for each video before it is committed. If asked for, it uses one core of its share."""

    def __init__(self, uri: str, config: EmbedConfig, cores: int, *others: Any) -> None:
        super().__init__(uri, config, 1 if os.environ.get(ONE_CORE) else cores, *others)

    def embedded(self, video: EmbeddedVideo) -> None:
        if not video.error:
            note(f"{os.getpid()} {time.time():.3f} {time.process_time():.3f} {video.path}")


def note(line: str) -> None:
    """Append a line in one write, which processes can do at the same time."""
    with Path(os.environ[LOG]).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


if __name__ == "__main__":
    from ray_driver import LoggingWorker as Worker  # by its module, so that workers can import it

    os.environ[LOG] = str(Path(sys.argv[1]).absolute())
    real = indexing.index_with_ray

    def with_log(*words: Any, **named: Any) -> Any:
        return real(*words, **named, worker=Worker)

    indexing.index_with_ray = with_log
    sys.argv[1:] = sys.argv[2:]
    from allocembed.cli.main import main

    main()
