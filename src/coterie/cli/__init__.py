"""The commands, the configuration files, and the objects that they build."""

from coterie.cli.commands import app, main

__all__ = ["app", "main"]
