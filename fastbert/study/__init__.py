"""The paper's studies as commands: pre-trains the rows of a table, tries them on tasks, reports beside the paper."""
