"""Sources of training examples: the procedural world, or a .jsonl of real videos."""
