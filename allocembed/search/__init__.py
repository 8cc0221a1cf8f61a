"""Search your own videos: an index on disk, sentences in, moments out. Importing this does not import torch.

>>> from allocembed import EmbedConfig
>>> from allocembed.search import VideoIndex
>>> index = VideoIndex.create("my.index", EmbedConfig())         # doctest: +SKIP
>>> index.add(["Videos"])                                        # doctest: +SKIP
>>> index.search("a dog jumps into a lake")[0]                   # doctest: +SKIP
"""

from allocembed.errors import SearchError
from allocembed.files import FileEntry
from allocembed.search.filters import Filters
from allocembed.search.hit import Hit
from allocembed.search.index import VideoIndex
from allocembed.search.indexing import IndexReport
from allocembed.search.query import Example, Query
from allocembed.search.settings import IndexSettings
from allocembed.search.store import IndexBusy

__all__ = [
    "Example",
    "FileEntry",
    "Filters",
    "Hit",
    "IndexBusy",
    "IndexReport",
    "IndexSettings",
    "Query",
    "SearchError",
    "VideoIndex",
]
