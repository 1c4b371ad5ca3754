"""The paper's studies as commands: pre-trains the rows of a table, fine-tunes them on tasks, and reports the results
beside the paper's.

    run                              the jobs that are not in the cache, one after the other: start here
    spec, definition, fits           the file, and what follows from it; checks before hours are spent
    plan                             tokens and time, before a study runs
    corpus, pretrained, cells        what is made once, in a cache: shards, models, their fine-tunings
    keys, locks                      the cache's names, and one process at a time for each
    senses, polysemy                 the test of words with two meanings
    results, compare, machine        the outcome as one JSON value
    page, document                   the outcome as a report
"""
