"""Other libraries' models and files: patch, convert, ONNX, sentence-transformers."""
