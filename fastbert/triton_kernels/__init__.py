"""Triton kernels, one file per op: the kernels, their launch settings, and launchers that take tensors.

What ops share is in `common`, what attention's passes share in `attention_dropout`, and what the optimisers `adamw` and
`lamb` share in `optimizer`.

Imported only for calls that they serve: importing triton takes time, and it may not be installed.
"""
