"""Weight files: reads all published formats, loads them under Hugging Face's names, and writes model directories."""
