"""Claims about language models that were trained elsewhere."""
