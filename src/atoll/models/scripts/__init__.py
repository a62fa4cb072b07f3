"""A user's training script as a model: run as a process of its own at each client, and asked in `atoll.client`'s words."""
