"""A Flower app that sends arrays out and averages what comes back."""
