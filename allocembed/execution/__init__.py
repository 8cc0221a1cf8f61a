"""Executors: who runs the stages of `AllocEmbed`, in which threads, streams and processes."""
