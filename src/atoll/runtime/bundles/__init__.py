"""What a person submits: a job as one signed file, and how it is packed, checked and unpacked."""
