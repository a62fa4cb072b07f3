"""Clocks, requests under way, deadlines, and the meters of what moved."""
