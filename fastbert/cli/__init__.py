"""The command line: one file per command, with a dataclass of its options and ``run(args)``; no algorithms.

`main` finds the command and turns errors into one sentence. Files with a leading underscore are not commands:

    _options, _values, _paths      types and checks of options
    _usage                         a command line that cannot be read, said in one sentence
    _tables, _progress             tables and progress bars
    _tasks                         what finetune, evaluate and predict share
    _finetune_*, _features         parts of `fastbert finetune`
"""
