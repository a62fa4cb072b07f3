"""The server's process: its lines to sites and people, the jobs it carries out, and who may see what."""
