"""Wrong labels: how they go wrong, and a loss that takes it out."""
