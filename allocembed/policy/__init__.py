"""Parts of the learned allocator: previews, the trained policy, its checkpoints."""
