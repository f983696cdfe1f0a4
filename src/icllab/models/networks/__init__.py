"""Networks of attention and the alternatives they are compared with."""
