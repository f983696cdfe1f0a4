"""Claims about induction heads and abrupt learning."""
