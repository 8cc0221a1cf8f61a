"""The README keeps its word: its commands are the ones that run, its links lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_ci_runs_the_second_command_of_the_readme():
    commands = re.findall(r"```sh\n(.+?)\n```", README, re.DOTALL)
    assert commands[1] in (ROOT / ".ci/run").read_text().splitlines()


def test_every_local_link_of_the_docs_exists():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
