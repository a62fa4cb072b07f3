"""The C++ that native programs have in common, as text."""
