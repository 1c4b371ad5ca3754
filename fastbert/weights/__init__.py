"""Weight files: reads all published formats, loads them under Hugging Face's names, and writes model directories.

reading                         the tensors of a directory or a file, in any format; start here
tensor_bundle, leveldb, crc32c  TensorFlow 1's checkpoints, without TensorFlow
foreign_names                   the names in these, and in DeepSpeed's fused layers
names                           all published variants of the names of BERT's tensors, in one form
kin, distilbert, electra, roberta
                                models that are read as BERTs
loading, misfit, materialise    tensors into a model; why they do not fit; memory for a model on the meta device
saving, safetensors_format      the directory of a model; its file of weights
"""
