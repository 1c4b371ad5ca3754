"""`fastbert.patch`: models that other processes are given."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import hf_parity as hf
import pretraining_runs
import torch
import transformers
from patched import arguments, twins
from torch import nn

import fastbert

_LOAD = """
import sys
import torch
models, calls = torch.load(sys.argv[1], weights_only=False)
from fastbert.interop.patch import is_patched
assert all(map(is_patched, models))
with torch.no_grad():
    torch.save([model(**call) for model, call in zip(models, calls, strict=True)], sys.argv[2])
"""


def test_a_pickle_is_read_by_a_process_that_has_patched_nothing(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    roberta = transformers.RobertaModel(transformers.RobertaConfig(**sizes, intermediate_size=64)).eval()
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    models = [
        twins("BertModel")[1].eval(),
        fastbert.patch(copy.deepcopy(roberta)),
        fastbert.patch(nn.TransformerEncoder(layer, 1).eval()),
    ]
    ids = {"input_ids": torch.randint(2, 50, (2, 7))}
    calls = [arguments("BertModel"), ids, {"src": torch.randn(2, 3, 8)}]
    torch.save((models, calls), tmp_path / "models.pt")
    there = [sys.executable, "-c", _LOAD, str(tmp_path / "models.pt"), str(tmp_path / "outputs.pt")]
    # The transformers of this process, which with_transformers.sh may have put before the environment's.
    environment = pretraining_runs.environment() | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = {"cwd": tmp_path, "env": environment}
    done = subprocess.run(there, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "outputs.pt", weights_only=False)
    with torch.no_grad():
        wanted = [model(**call) for model, call in zip(models, calls, strict=True)]
        hf.assert_near(found[1][0], roberta(**ids)[0], torch.float32, "RoBERTa")
    for got, here in zip(found, wanted, strict=True):
        assert torch.equal(*(x if isinstance(x, torch.Tensor) else x.last_hidden_state for x in (got, here)))
