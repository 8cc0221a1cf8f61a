"""The Docker files name things that exist; `hadolint docker/*.Dockerfile` checks their form."""

import importlib.util
import json
import re
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from allocembed.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lines(path: Path, word: str) -> list[str]:
    """Arguments of an instruction, for each time it is used."""
    return re.findall(rf"^{word} (.*)$", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_everything_that_is_copied_exists_and_is_sent_to_docker(path):
    sent = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")]
    for copied in lines(path, "COPY"):
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists() and source in sent


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_packages_are_those_of_the_project(path):
    (torch,) = (each for each in PROJECT["dependencies"] if each.startswith("torch"))
    installed = [line for line in lines(path, "RUN") if "pip install" in line]
    assert f'"{torch}"' in installed[0]
    (extras,) = re.findall(r'"\.\[(.*)\]"', installed[1])
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_container_runs_a_command_of_ours_as_an_ordinary_user(path):
    assert lines(path, "USER") == ["10001:10001"]
    (program,), (arguments,) = (map(json.loads, lines(path, word)) for word in ("ENTRYPOINT", "CMD"))
    assert program == list(PROJECT["scripts"]) and arguments[0] in COMMANDS
    (health,) = lines(path, "HEALTHCHECK")
    assert any(json.loads(health.partition("CMD ")[2])[1] in copied for copied in lines(path, "COPY"))


def test_both_images_end_alike():
    ends = [path.read_text().partition("WORKDIR /src")[2] for path in FILES]
    assert len(FILES) == 2 and ends[0] == ends[1] != ""


@pytest.fixture(scope="module")
def healthcheck() -> ModuleType:
    found = importlib.util.spec_from_file_location("healthcheck", ROOT / "docker" / "healthcheck.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_server_that_answers_is_healthy(healthcheck):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = self.headers["Authorization"] == "Bearer secret"
            self.send_response((200 if right else 401) if self.path == "/" else 404)
            self.end_headers()

        def log_message(self, *_) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        port = server.server_port
        Thread(target=server.serve_forever, daemon=True).start()
        healthy = [healthcheck.is_healthy(port, token) for token in ("secret", "", "wrong")]
        server.shutdown()
    assert healthy == [True, True, False]
    assert not healthcheck.is_healthy(port, "secret"), "nothing listens any more"


def test_the_port_and_the_command_are_those_of_the_first_process(healthcheck, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cmdline").write_bytes(b"python\0allocembed\0serve\0/data/x\0--port\09000\0")
    words = healthcheck.find_command(tmp_path)
    assert "serve" in words and healthcheck.find_port(words) == 9000
    assert healthcheck.find_port(["serve", "--port=9001"]) == 9001 and healthcheck.find_port(["serve"]) == 8000
