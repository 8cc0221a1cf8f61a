"""Requests for NanoRet: usual names are filled in, wrong ones are named before anything heavy is imported."""

import subprocess
import sys

import pytest

from allocembed import EmbedConfig
from allocembed.allocators.registry import ALL_METHODS
from allocembed.errors import AllocEmbedError
from allocembed_nano.request import RETRIEVAL, SUBSETS, NanoRequest


def test_usual_names_are_filled_in():
    request = NanoRequest()
    assert list(request.subsets) == list(SUBSETS) and tuple(request.methods) == ALL_METHODS
    assert tuple(request.backbones) == ("nano-qwen3",)
    sweep = NanoRequest(sweep="frames")
    assert tuple(sweep.methods) == ("full", "uniform") and tuple(sweep.subsets) == RETRIEVAL


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ["magic"]}, "unknown allocator 'magic'"),
        ({"subsets": ["tall-video"]}, "unknown subset 'tall-video'"),
        ({"limit": 0}, "limit"),
        ({"seed": -1}, "seed"),
        ({"sweep": "frames", "config": EmbedConfig(candidates=8)}, "leave out --candidates"),
    ],
)
def test_wrong_options_are_named(settings, message):
    with pytest.raises(AllocEmbedError) as error:
        NanoRequest(**settings)
    assert message in str(error.value)


def test_commands_and_names_do_not_import_torch():
    modules = "allocembed_nano.cli.demo, allocembed_nano.cli.evaluate, allocembed_nano.names"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
