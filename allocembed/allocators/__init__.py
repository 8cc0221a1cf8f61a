"""Allocation policies, one per file, under the names used everywhere; `registry` finds them."""
