"""The paper's studies as commands: pre-trains the rows of a table, fine-tunes them on tasks, and reports the results
beside the paper's."""
