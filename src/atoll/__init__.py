"""Federated computing for Python."""
