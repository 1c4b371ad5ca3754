"""The life of a small BERT on the documentation that comes with Python, with a report."""
