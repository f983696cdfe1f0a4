"""Published findings: each a folder that says what should be true, measures it, and checks it."""
