"""What a server remembers of its jobs: records, states, and the stores that keep them."""
