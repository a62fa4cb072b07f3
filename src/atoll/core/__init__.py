"""The waist: parties, islands, tasks, federations, messages, time. NumPy only; no learning, no network."""
