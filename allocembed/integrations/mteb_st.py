"""An exported model as mteb takes it: `mteb.evaluate(StMtebModel(model), tasks)`.

mteb knows a local model of sentence-transformers by no name, takes it for a text model, and decodes videos itself. So
results of two folders would share one place, and pictures and videos would be left out. This wrapper has a name and a
revision with the allocator, the budget and a digest of everything else, and hands videos over as files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allocembed.errors import MissingDependency
from allocembed.integrations.mteb import MtebModel, make_meta
from allocembed.integrations.sentence_transformers import KINDS

try:
    from mteb.models import SentenceTransformerEncoderWrapper
except ImportError as error:
    raise MissingDependency("evaluation with mteb", "mteb", "eval") from error

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class StMtebModel(SentenceTransformerEncoderWrapper):
    """A model that `allocembed export-st` wrote, loaded by sentence-transformers."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__(model)
        found: Any = model[0]
        self.videos = MtebModel(found.embedder)
        frameworks = ["Sentence Transformers", "PyTorch"]
        self.mteb_model_meta = make_meta(found.embedder).model_copy(
            update={"modalities": KINDS, "framework": frameworks}
        )

    def encode(self, inputs: Any, **options: Any) -> Any:
        own = self.videos if "video" in inputs.dataset.features else super()
        return own.encode(inputs, **options)
