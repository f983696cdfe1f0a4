"""Tables of the fixture book."""
