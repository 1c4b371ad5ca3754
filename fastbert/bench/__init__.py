"""Measures fastbert against the peers installed on this machine: inference, training, kernels, data.

A variant (a library in one dtype) runs in its own process, which this process controls step by step, so that all
variants take turns, A-B-A-B. Each variant's results are first compared with float64; one that is wrong gets no figure.
"""
