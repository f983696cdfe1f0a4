"""Claims about models that direct each context to a phase of its own."""
