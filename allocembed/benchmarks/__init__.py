"""Benchmarks: tasks of queries and candidates, scored by Hit@1 and mean rank beside the realised cost."""
