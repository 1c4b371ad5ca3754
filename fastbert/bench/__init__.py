"""Measures fastbert against the peers installed on this machine: inference, training, kernels, data.

A variant (a library in one dtype) lives in a process of its own, which this process leads step by step, so that all of
them run in turn, A-B-A-B. What a variant computes is held to a float64 truth first; one that is wrong gets no figure.
"""
