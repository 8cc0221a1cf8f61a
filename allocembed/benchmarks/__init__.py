"""Benchmarks: retrieval and question answering on videos, scored by Hit@1 and mean rank beside the realised cost."""
