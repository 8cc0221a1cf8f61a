"""The parts of bench/torture.py: each attacks one promise and counts what went wrong."""
