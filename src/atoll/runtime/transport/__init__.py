"""Transports: how blocks of bytes get from one process to another."""

from .base import BLOCK, Accept, Listener, Pipe, PipeClosed, Revoked, Transport
from .local import local_pipe

__all__ = ["BLOCK", "Accept", "Listener", "Pipe", "PipeClosed", "Revoked", "Transport", "local_pipe"]
