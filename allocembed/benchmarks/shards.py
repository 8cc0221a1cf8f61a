"""Divide an evaluation among processes that share nothing but a cache folder: `--shard 1/4` to `--shard 4/4`.

A shard embeds its part of the videos and texts. It then records which videos it could not read, so that the others can
tell a failed video from one that is still to come. Importing this module does not import torch.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from allocembed.errors import ConfigError, DataError
from allocembed.output.files import write_text


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, counted from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a shard as the command line writes it.

        >>> Shard.parse("2/4"), str(Shard(2, 4))
        (Shard(number=2, count=4), '2/4')
        >>> Shard.parse("0/4")
        Traceback (most recent call last):
        allocembed.errors.ConfigError: cannot use the shard '0/4': write I/N, with I from 1 to N
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"cannot use the shard {text!r}: write I/N, with I from 1 to N")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, key: str) -> bool:
        """Whether the work with this hexadecimal key belongs to this shard."""
        return int(key[:8], 16) % self.count == self.number - 1


@dataclass(frozen=True)
class ShardRecords:
    """Records of videos that shards of one evaluation could not read: a small file each, in the cache."""

    folder: Path

    def path(self, shard: Shard) -> Path:
        return self.folder / f"{shard.number}-of-{shard.count}.json"

    def begin(self, shard: Shard) -> None:
        """Forget what an earlier run of this shard could not read."""
        self.path(shard).unlink(missing_ok=True)

    def finish(self, shard: Shard, failures: dict[str, str]) -> None:
        """Record errors by the name of the embedding that they prevented."""
        write_text(self.path(shard), json.dumps(failures, indent=1))

    def failures(self) -> dict[str, str]:
        """All recorded errors, by the name of the embedding."""
        found: dict[str, str] = {}
        for path in sorted(self.folder.glob("*-of-*.json")):
            try:
                found |= json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, TypeError) as error:
                raise DataError(f"cannot read {path} ({error}): delete that file and run its shard again") from error
        return found


def describe_missing(shard: Shard, missing: int) -> str:
    """The message of a finished shard while the others still have embeddings to make."""
    return (
        f"shard {shard} is finished; {missing:,} embeddings of other shards are still to come: the last shard to "
        "finish writes the results, or a run without --shard"
    )
