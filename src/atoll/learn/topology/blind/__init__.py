"""A server that sees ciphertexts only: models, updates and metrics are the sites' alone."""
