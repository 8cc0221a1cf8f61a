"""How many windows a video gets."""

import pytest

from allocembed.errors import SearchError
from allocembed.search import segments


@pytest.mark.parametrize("bad", ["", "sometimes", "-3", "0.1", "nan", "inf"])
def test_segments_that_mean_nothing_are_refused(bad):
    with pytest.raises(SearchError, match="as in --segments 30"):
        segments.parse_segments(bad)
