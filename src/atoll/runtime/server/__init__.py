"""The server's process: its lines to sites and people, the jobs that it runs, and who may see what."""
