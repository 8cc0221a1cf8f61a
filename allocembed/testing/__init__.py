"""Suites of tests that an implementation of a seam must pass. They need pytest: pip install 'allocembed[test]'."""
