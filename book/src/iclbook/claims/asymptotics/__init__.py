"""Claims about the exact in-context error of linear attention, and trained transformers that follow it."""
