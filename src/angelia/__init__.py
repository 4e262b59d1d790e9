"""Angelia: a message platform for AI agents."""

__version__ = "0.1.0"
