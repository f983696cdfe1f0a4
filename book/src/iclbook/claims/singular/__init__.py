"""Claims of singular learning theory."""
