"""Where training examples come from: the procedural world, or a .jsonl of real videos."""
