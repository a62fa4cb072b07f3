"""Self-supervised methods on digits, with and without skew: what `labels-self` judges."""
