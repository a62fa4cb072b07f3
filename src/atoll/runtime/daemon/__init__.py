"""Parts that long-lived processes share: job processes, relays, frames about jobs, places of files."""
