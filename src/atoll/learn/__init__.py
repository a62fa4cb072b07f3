"""Horizontal learning."""
