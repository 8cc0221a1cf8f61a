"""Toy models for AllocEmbed, the procedural world that they know, and a demo and a benchmark in it.

AllocEmbed never imports this package: it finds the names of `pyproject.toml` through entry points.
"""

__version__ = "0.3.0.dev0"
