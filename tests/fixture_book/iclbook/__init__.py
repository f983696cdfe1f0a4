"""The book that the laboratory is tested with: claims as `icl claim new` writes them."""
