"""Triton kernels, one file per op: the kernels, their launch settings, and launchers that take tensors.

Imported only for calls that they serve: importing triton takes time, and it may not be installed.
"""
