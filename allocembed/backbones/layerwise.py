"""The base of the families that run their models block by block with attention within rows.

A family has two functions, one for a block of the tower and one for a layer of the language model. They may be
compiled. Compiled functions cannot be pickled, so they are made again in the process that reads a pickle.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from allocembed.backbones.attention.rows import register_row_attention
from allocembed.backbones.base import Backbone

Run = Callable[..., torch.Tensor]
# One graph serves all blocks and all sizes. It rounds where the model rounds, so vectors stay the same.
COMPILED: dict[str, Any] = {"dynamic": True, "options": {"emulate_precision_casts": True}}


class LayerwiseBackbone(Backbone):
    """A backbone whose tower and language model are run block by block, by `block` and `layer`."""

    @abstractmethod
    def find_functions(self) -> tuple[Run, Run]:
        """The functions for a block of the tower and for a layer of the language model, not compiled."""

    def set_functions(self) -> None:
        """Set `block` and `layer`, compiled if that was requested. A family calls it in `set_up`."""
        self.block, self.layer = self.find_functions()
        if self.compiled:
            self.block, self.layer = (torch.compile(run, **COMPILED) for run in (self.block, self.layer))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("block", "layer")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        register_row_attention()  # the models name it in their configs
        self.set_functions()
