"""The demo: trains, evaluates and uses a small BERT on the documentation that comes with Python."""
