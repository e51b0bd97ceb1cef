"""The commands, configuration files and what they build."""

from coterie.cli.commands import app, main

__all__ = ["app", "main"]
