"""Published findings, each a folder with a statement, its measurement and its check."""
