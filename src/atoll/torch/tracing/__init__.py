"""Traced programs: operations recorded, rewritten and compiled."""
