"""Rounds of regions under a cloud: quotas, slack factors, and what an edge knows about its clients."""
