"""Stages on the way up: one idea a file."""

from .clip import Clip

__all__ = ["Clip"]
