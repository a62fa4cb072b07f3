"""Conversations of roles at different sites: relayed by the server or spoken directly."""
