"""Tasks: one small file each; `finetune` and `predict` are the machinery that they share and know nothing of it."""
