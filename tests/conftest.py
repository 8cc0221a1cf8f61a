"""Fixtures shared by all tests: tiny checkpoints of both families, of SmolVLM2 and of the nano models, saved once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import tiny

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_qwen2(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_qwen3(tmp_path_factory.mktemp("qwen3"))


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


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums over threads round differently, and some tests compare bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
