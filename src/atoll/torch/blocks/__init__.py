"""Cohorts in blocks: decide once how to run them, feed them, train them, and add them up."""
