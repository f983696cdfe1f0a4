"""Claims about pretrained language models."""
