"""A Flower app that sends arrays out and averages the replies."""
