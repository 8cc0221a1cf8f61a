"""The command line: one file per group of commands, each a thin layer over the package."""
