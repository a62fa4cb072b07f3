"""What adds up: moments, sketches, histograms and sums for correlations, and what is read from them. Each is a commutative monoid over sets of rows."""
