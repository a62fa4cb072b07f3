"""Local differential privacy: stages whose encodings are private one by one, whoever sees them."""
