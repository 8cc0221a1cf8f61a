"""Search your own videos: an index on disk, sentences in, moments out.

>>> from allocembed.search import VideoIndex                                  # doctest: +SKIP
>>> index = VideoIndex.create("my.index", "qwen3-vl-embedding-2b")            # doctest: +SKIP
>>> index.add(["Videos"])                                                     # doctest: +SKIP
>>> index.search("a dog jumps into a lake")[0]                                # doctest: +SKIP
"""

from allocembed.search.adding import Added
from allocembed.search.errors import SearchError
from allocembed.search.index import Hit, VideoIndex
from allocembed.search.settings import Settings

__all__ = ["Added", "Hit", "SearchError", "Settings", "VideoIndex"]
