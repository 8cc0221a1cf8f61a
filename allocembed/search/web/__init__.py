"""The search page: a server over one index, what it answers, and the files of the page."""
