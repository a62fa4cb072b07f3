"""What ``atoll labels compare`` and ``atoll labels methods`` do."""
