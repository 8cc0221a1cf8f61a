"""What can go wrong with an index, in words that say what to do."""


class SearchError(ValueError):
    """An index that can't be used as asked; the message says why and what to do."""
