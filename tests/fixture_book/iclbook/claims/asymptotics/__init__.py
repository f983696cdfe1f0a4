"""Errors in the limit of large dimension."""
