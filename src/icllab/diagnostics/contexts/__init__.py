"""Contexts to weights: which weights answer without a context as a model answers with it, and what that shows."""
