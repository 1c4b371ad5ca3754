"""The building blocks of BERT: they own parameters under Hugging Face's names and call `fastbert.ops`."""
