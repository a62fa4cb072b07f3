"""Rounds whose clients work on models of several versions: who is at work, what arrives, and the row of such a round."""
