"""Requests on their way: sent, awaited, taken into use or given up; in virtual time and between real parties."""
