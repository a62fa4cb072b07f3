"""Clocks, requests in flight, deadlines, and meters of traffic and energy."""
