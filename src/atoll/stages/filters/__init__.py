"""Filters: what leaves out or bounds parts of an update without promising privacy."""
