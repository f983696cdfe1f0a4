"""Measured phenomena, each with theories of it."""
