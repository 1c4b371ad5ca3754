"""Triton kernels, one file an op: the kernels, their launch settings, and launchers that take tensors.

Imported only where a call is served by them: importing triton costs time, and it need not be installed.
"""
