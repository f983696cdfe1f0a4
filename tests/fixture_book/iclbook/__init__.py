"""The book that the laboratory is tested with: claims as `icl new` writes them."""
