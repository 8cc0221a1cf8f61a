"""EmbeddingGemma 2: single frames, bidirectional attention, a mean over all tokens, a projection."""
