"""Pre-training in one process: the step, the loop, checkpoints, metrics and plots."""
