"""Other libraries' models and files: patch, convert, ONNX, sentence-transformers.

patch                      `fastbert.patch` and `unpatch`: the class of each encoder is replaced; start here
patch_pass, patch_encoder  one forward pass of a patched model of transformers, or of its encoder alone
patch_view                 our encoder around the modules of theirs
patch_families             which models of transformers can be patched, and where each keeps its parts
patch_checks, patch_parts  why a model, or a module inside it, is computed by its own code
patch_torch                torch.nn.TransformerEncoder
patch_quantize             int8 in a patched model
convert, convert_source    `fastbert convert`: the formats; reading any of them
convert_tensorflow, convert_onnx, convert_sentence
                           writing one format each
sentence_encoder           `fastbert.SentenceEncoder`
sentence_files, sentence_modules, sentence_positions
                           its directory; the pooling and the layers after the model; positions there and here
"""
