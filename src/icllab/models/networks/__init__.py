"""Networks of attention, and the alternatives to compare them with."""
