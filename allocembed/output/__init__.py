"""Results and messages: files written whole, vector files, and the console."""
