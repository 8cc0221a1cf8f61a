"""Run the command line inside the test process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest import mock

from allocembed.cli.main import main


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


def run(*words: object) -> Result:
    """Run `allocembed WORDS`; return its output and status."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    argv = ["allocembed", *map(str, words)]
    with redirect_stdout(stdout), redirect_stderr(stderr), mock.patch.object(sys, "argv", argv):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Result(code, stdout.getvalue(), stderr.getvalue())
