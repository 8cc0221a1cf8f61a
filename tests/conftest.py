"""Fixtures shared by all tests: tiny checkpoints of both families and of SmolVLM2, saved once."""

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
