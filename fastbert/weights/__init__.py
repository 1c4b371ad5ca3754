"""Weights in files: read in every published form, loaded under Hugging Face's names, saved as a directory of it."""
