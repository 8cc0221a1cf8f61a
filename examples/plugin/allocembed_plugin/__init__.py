"""What a package that extends AllocEmbed looks like; `pyproject.toml` names what it adds."""
