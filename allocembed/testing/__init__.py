"""Tests that an extension of AllocEmbed must pass, to be imported by its own tests. They need pytest."""
