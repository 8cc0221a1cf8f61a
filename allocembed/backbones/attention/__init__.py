"""Attention within concatenated rows of different length, which the families share."""
