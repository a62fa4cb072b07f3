"""The alternating direction method of multipliers where messages differ by client or a task has its own shape."""
