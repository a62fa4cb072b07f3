"""Cohorts that are samples of the clients."""
