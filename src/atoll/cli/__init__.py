"""The command line: ``atoll demo``, ``run``, ``runs``, ``report``, ``compare``, ``reproduce``, ``algorithms``, ``doctor``, ``schema``."""

from .app import main, run

__all__ = ["main", "run"]
