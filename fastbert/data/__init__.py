"""Text to packed batches: corpus readers, tokenizers, shards, sentence pairs, masking, the loader."""
