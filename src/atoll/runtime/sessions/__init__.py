"""Sessions between organisations: the server's half, a site's half, the keys of roles, and links from site to site."""
