"""Contexts as changes of weights: models where the change is known, and the exact pieces of a transformer."""
