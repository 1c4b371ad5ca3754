"""Measures fastbert against the peers installed on this machine: inference, training, kernels, data.

A variant (a library in one dtype) runs in its own process, which this process controls step by step, so that all
variants take turns, A-B-A-B. Each variant's results are first compared with float64; one that is wrong gets no figure.

    run                                 all of `fastbert bench`: start here
    session, pool, worker               variants in their processes, in turns
    variants, peers/                    every library in every dtype
    workloads, shapes, models           what is measured: batches, ops' shapes, weights
    gate                                whether a result is close enough to get a figure
    kernels, data                       the other two suites: ops, and `prepare`
    turns, scratch                      what all use: turns within a process, a directory
    results, table, plot, gpu           figures as JSON, tables and pictures; those of GPUs
"""
