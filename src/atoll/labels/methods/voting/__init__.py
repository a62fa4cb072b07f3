"""Clients that vote on public rows: their votes, the noise of these, and what the server makes of the outcome."""
