"""Doors: the embedder inside tools that people already run.

`sentence_transformers` and `vllm` serve the same vectors through another library's interface, hence the name. What only
changes the shape of inputs and settings (`requests`, `folder`) needs neither library. Each door imports its library
when it is used, never before.
"""
