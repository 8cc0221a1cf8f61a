"""Vectors of search sentences by the text half of an index's model, as long as the whole model is not needed."""

from __future__ import annotations

import logging
import threading

import numpy as np

from allocembed.backbones.checkpoint import find_entry
from allocembed.backbones.text_half import TextHalf, load_text_half
from allocembed.config import EmbedConfig
from allocembed.search.settings import PROBE, SAME_MODEL, IndexSettings

logger = logging.getLogger("allocembed")


class SentenceReader:
    """Embeds search sentences. What is needed of the model is loaded at the first one."""

    def __init__(self, settings: IndexSettings, config: EmbedConfig) -> None:
        self._settings, self._config = settings, config
        self._half: TextHalf | None = None
        self._tried = False
        self._lock = threading.Lock()  # several threads may search at once

    def vector(self, sentence: str) -> np.ndarray | None:
        """The vector (dim,) of a search sentence; None if only the whole model can tell."""
        with self._lock:
            if not self._tried:
                self._half, self._tried = self._open(), True
            half = self._half  # another thread may close it in the meantime
        return half.vector(sentence, half.query_instruction) if half else None

    def close(self) -> None:
        """Free the memory, because the whole model is there."""
        with self._lock:
            self._half, self._tried = None, True

    def _open(self) -> TextHalf | None:
        """The text half of the model, if it is that of the index. If not, loading the whole model says so."""
        config = self._config
        if config.compile:
            return None
        half = load_text_half(
            config.backbone, device=config.device, dtype=config.dtype, inputs=config.inputs, dim=config.dim
        )
        try:
            probe, stored = half.vector(PROBE) if half else None, self._settings.probe
        except (RuntimeError, LookupError):  # weights of other sizes than the config says, or none
            return None
        if probe is None or len(probe) != len(stored) or float(np.dot(probe, stored)) < SAME_MODEL:
            return None
        if notice := find_entry(config.backbone).notice:
            logger.warning(notice)
        return half
