"""Text to packed batches: corpus readers, tokenizers, shards, sentence pairs, masking, the loader.

prepare                                        text files to a directory of token shards: start here
corpus, corpus_rows, corpus_forms              documents: of files, of rows with columns, of published forms
builtin_corpus                                 documents of Python's own documentation
sentences, chunks                              where a sentence ends; texts in bounded chunks
tokenizer                                      loads, trains and saves tokenizers, in the formats of
vocab_files, tokenizer_json, bpe               vocab.txt, tokenizer.json, vocab.json with merges.txt
special_tokens, added_tokens, truncation       [CLS] and the like; tokens beside a vocabulary; what is cut
alphabet, characters                           the characters of a corpus, and those of a word, as ELMo reads it
encode, word_cache                             a worker's job: sentences to ids; the ids of words that were seen
shard_writer, shards, token_file               shards: written, read, mapped into memory
manifest, remote                               the list of shards with their hashes; shards that are fetched
pretraining, config                            an epoch's samples as packed batches, and their options
pairs, masking, randomness                     which sentences are a sample, which tokens are masked
budget, histogram                              batches of one shape, and how samples are packed into them
loader, ranks                                  batches made ahead of the step, and which rank computes which
"""
