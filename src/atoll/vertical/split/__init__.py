"""One neural network over columns at several parties: each owner has a bottom of it, and only what passes the cut travels."""
