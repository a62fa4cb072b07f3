"""Requests in flight: sent, awaited, used or given up; in virtual time and between real parties."""
