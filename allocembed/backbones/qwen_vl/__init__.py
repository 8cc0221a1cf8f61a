"""Qwen2-VL and Qwen3-VL: frame pairs, causal attention, last-token pooling."""
