"""Fixtures shared by all tests: tiny checkpoints of both families, of SmolVLM2 and of the nano models, saved once."""

import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import torch

from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from tests import tiny
from tests.families import siglip
from tests.object_storage import ObjectServer
from tests.postgres import postgres_server

pytest.register_assert_rewrite("allocembed.testing")
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)

# A file is run whole by one process, so the longest start first: none is then left for one process at the end.
SLOWEST_FILES = (
    "tests/test_torture.py",
    "tests/search/test_world.py",
    "tests/rdpo/test_trainer.py",
    "tests/benchmarks/test_campaign.py",
    "tests/rdpo/test_run.py",
    "tests/nano/test_models.py",
    "tests/workers/test_contract.py",
    "tests/search/test_workers.py",
    "tests/search/test_kill.py",
    "tests/search/page/test_results.py",
    "tests/search/page/test_player.py",
    "tests/cli/test_search.py",
    "tests/cli/test_embed.py",
    "tests/search/test_race.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(SLOWEST_FILES)))


@pytest.fixture(scope="session")
def ray_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home folder for Ray's token, one for all tests of a process: Ray reads the token once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_qwen2(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_qwen3(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def gemma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers.models.embedding_gemma2", reason="needs transformers 5.19")
    return tiny.save_gemma(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="session")
def qwen25_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_qwen25(tmp_path_factory.mktemp("qwen25"))


@pytest.fixture(scope="session")
def qwen3_moe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_qwen3_moe(tmp_path_factory.mktemp("qwen3_moe"))


@pytest.fixture(scope="session")
def qwen35_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_qwen35(tmp_path_factory.mktemp("qwen35"))


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return siglip.save(tmp_path_factory.mktemp("siglip"))


@pytest.fixture(scope="session")
def smol_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_smol(tmp_path_factory.mktemp("smol"))


@pytest.fixture(scope="session")
def nano_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained nano checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent.parent / "recipes"))
        from nano_model import build_backbone, save_backbone

        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("models") / "nano-tiny"
        save_backbone(build_backbone("qwen3", tiny=True), folder, {})
    return folder


@pytest.fixture(scope="session")
def nano_backbone(nano_tiny: Path) -> Backbone:
    """An untrained nano model."""
    return load_backbone(nano_tiny, device="cpu")


class _Full(io.FileIO):
    def write(self, data) -> int:
        if data:
            raise OSError(28, "No space left on device")
        return 0


@pytest.fixture
def full_disk(monkeypatch) -> str:
    """No file of results finds room for a byte; the words that say so, with the file's place left open."""
    real = io.open

    def refuse(file, mode="r", *rest, **named):
        if not str(file).endswith(".partial"):
            return real(file, mode, *rest, **named)
        written = _Full(file, mode.replace("b", ""))
        return written if "b" in mode else io.TextIOWrapper(written, encoding="utf-8", write_through=True)

    monkeypatch.setattr(io, "open", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    return "cannot write {}: No space left on device; make room there, or choose another place"


@pytest.fixture
def make_fifo() -> Iterator[Callable[[Path], None]]:
    """Makes FIFOs. Whoever waits for one is let go after ten seconds, and the test fails instead of hanging."""
    rescues: list[threading.Timer] = []

    def let_go(path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    def make(path: Path) -> None:
        os.mkfifo(path)
        rescues.append(threading.Timer(10, let_go, [path]))
        rescues[-1].start()

    yield make
    waited = [rescue for rescue in rescues if not rescue.is_alive()]
    for rescue in rescues:
        rescue.cancel()
    assert not waited, "a FIFO was waited for"


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """Object storage on this machine, as a process of its own."""
    with ObjectServer() as server:
        yield server


@pytest.fixture
def bucket(object_server, monkeypatch) -> str:
    """The address of a new bucket, which this process may use."""
    for name, value in object_server.variables.items():
        monkeypatch.setenv(name, value)
    return object_server.make_bucket(f"bucket-{uuid4().hex}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a database on a PostgreSQL server that all tests share."""
    with postgres_server() as address:
        yield address


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums over threads round differently, and some tests compare bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
