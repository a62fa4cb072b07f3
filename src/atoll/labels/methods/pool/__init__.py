"""The server's own rows without labels: a method that trains on them, and rounds that set how much."""
