"""Methods for domains of which nobody has a row while training."""
