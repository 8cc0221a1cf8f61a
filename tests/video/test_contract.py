"""The contract of decoders, on ours and on one of another kind."""

import pytest

from allocembed.testing.decoders import DecoderContract
from allocembed.video import Decoders
from allocembed.video.decoders.pyav import PyAV
from tests.gif import PillowGif
from tests.nvdec import stand_in


class TestPyAV(DecoderContract):
    @pytest.fixture
    def decoders(self) -> Decoders:
        return PyAV()


class TestNvdec(DecoderContract):
    """Through the stand-in. What the GPU cannot decode, PyAV does."""

    @pytest.fixture
    def decoders(self) -> Decoders:
        return stand_in()


class TestNvdecBesideCores(DecoderContract):
    """As `auto` uses it."""

    kinds = ("b_frames", "matroska", "gif")

    @pytest.fixture
    def decoders(self) -> Decoders:
        return stand_in(shared=True)


class TestPillow(DecoderContract):
    kinds = ("gif",)

    @pytest.fixture
    def decoders(self) -> Decoders:
        return PillowGif()
