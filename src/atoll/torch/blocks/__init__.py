"""Cohorts in blocks: decided once how to run them, fed, trained, and added up."""
