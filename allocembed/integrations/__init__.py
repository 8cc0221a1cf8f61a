"""Integrations: the embedder inside tools that people already run.

Each module imports its library when it is used, never before. What only changes the shape of inputs and settings
(`sources`, `requests`, `folder`) needs no library.
"""
