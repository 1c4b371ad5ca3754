"""The building blocks of the models: they own parameters under Hugging Face's names and call `fastbert.ops`.

`fastbert.models` puts them together and adds what users call: inputs, heads, outputs, files.

    embeddings, layer, encoder, heads             BERT; stack runs its layers in one op if nothing was changed in them
    decoder, cache                                GPT and GPT-2; keys and values during generation
    character_cnn, lstm, bilm, elmo               ELMo
    bilstm, scalar_mix                            optional layers between a model and a task's head
    layout                                        packed or padded, and which tokens attend to each other
    linear, norm, hooks                           applying a dense layer or LayerNorm by an op, unless a hook, an
                                                  adapter or a subclass requires a call of the module itself
    unread                                        refuses parts that transformers' modules have and ours do not
    quantized, quantized_linear, fp8, precision   int8 inference, 8-bit training, the precision of a loaded model
    mode                                          evaluation mode for the time of a block
    graphs, uncompiled                            what torch.compile leaves out of its graphs
    said                                          what the log says once of how batches are computed
"""
