"""The command line: one file a command, holding a dataclass of its options and ``run(args)``; no algorithms."""
