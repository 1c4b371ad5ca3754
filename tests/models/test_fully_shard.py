"""torch's `fully_shard` (FSDP2) in two processes: native and patched models train as in one, and are saved whole."""

from __future__ import annotations

import hf_parity as hf
import pytest
import rank_runs
import torch
import torch.distributed as dist
from packaging.version import Version
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import fastbert
from fastbert.errors import CheckpointError

pytestmark = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.8"), reason="gloo has no reduce-scatter in torch before 2.8"
)

NAME = "BertForSequenceClassification"
KINDS = ("native", "patched")


def _model(kind):
    theirs, ours = hf.pair(NAME, torch.float64)
    return ours if kind == "native" else fastbert.patch(theirs)


def _sharded(kind, layers):
    model = _model(kind)
    for layer in model.bert.encoder.layer if layers else ():
        fully_shard(layer)
    return fully_shard(model)


def _train(model, rows=slice(None)):
    """The losses of three steps on these rows of the batch."""
    given = {key: x[rows] for key, x in (hf.arguments(NAME) | hf.labels(NAME)).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _ranks(directory):
    """By kind and by whether layers are sharded for themselves: the losses on this process's rows, and the weights.
    Then what is said to a model that is saved without being gathered."""
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), {}
    for kind in KINDS:
        for layers in (False, True):
            model = _sharded(kind, layers)
            losses = _train(model, slice(2 * rank, 2 * rank + 2))
            found[kind, layers] = losses, get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    model, (_, whole) = _sharded("native", True), found["native", True]
    with pytest.raises(CheckpointError) as refusal:
        model.save_pretrained(directory / f"refused{rank}")
    model.save_pretrained(directory / "saved", is_main_process=rank == 0, state_dict=whole)
    return found, str(refusal.value)


@pytest.fixture(scope="module")
def alone():
    """By kind: the losses of one process on the whole batch, and its weights."""
    models = {kind: _model(kind) for kind in KINDS}
    return {kind: (_train(model), model.state_dict()) for kind, model in models.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, alone):  # after it: what torch imports at the first step it imports before the forks
    place = tmp_path_factory.mktemp("ranks")
    return rank_runs.launch(_ranks, 2, place, place), place


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one(ranks, alone, kind, layers):
    wanted, state = alone[kind]
    (first, second), _ = ranks
    means = [(a + b) / 2 for a, b in zip(first[0][kind, layers][0], second[0][kind, layers][0], strict=True)]
    assert means == pytest.approx(wanted, rel=1e-12)
    for name, tensor in first[0][kind, layers][1].items():
        assert torch.allclose(tensor, state[name], rtol=0, atol=1e-11), name


def test_a_sharded_model_is_saved_whole_or_not_at_all(ranks):
    ((found, said), _), directory = ranks
    name = "bert.embeddings.word_embeddings.weight"
    assert said.startswith(f"{name}: expected a whole tensor of numbers to save, got a DTensor: ")
    assert sorted(path.name for path in directory.iterdir() if path.is_dir()) == ["saved"]
    saved = load_file(directory / "saved" / "model.safetensors")
    assert saved.keys() == _model("native").state_dict().keys()
    assert all(torch.equal(tensor, found["native", True][1][name]) for name, tensor in saved.items())
