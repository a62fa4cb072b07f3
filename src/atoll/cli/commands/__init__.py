"""The commands, one a file; importing this package registers them."""

from . import algorithms, compare, demo, doctor, provision, report, reproduce, run, runs, schema

__all__ = ["algorithms", "compare", "demo", "doctor", "provision", "report", "reproduce", "run", "runs", "schema"]
