"""Worlds that run the waist: inline, batched, processes and a loopback socket. They know tasks, never algorithms."""

from .inline import Inline

__all__ = ["Inline"]
