"""What ``atoll labels adapt``, ``compare`` and ``methods`` do."""
