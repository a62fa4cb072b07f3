"""The commands, one a file; importing this package registers them."""

from . import compare, demo, doctor, report, reproduce, run, runs, schema

__all__ = ["compare", "demo", "doctor", "report", "reproduce", "run", "runs", "schema"]
