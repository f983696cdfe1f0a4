"""Claims about models that use a separate phase for each context."""
