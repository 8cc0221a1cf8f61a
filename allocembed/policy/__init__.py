"""What the learned allocator is made of."""
