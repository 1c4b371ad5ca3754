"""What models return: a dictionary whose fields are also attributes, and what others make of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from fastbert.outputs import LogitsOutput, PreTrainingOutput

pytestmark = pytest.mark.skipif(torch.__version__ < (2, 7), reason="torch 2.6 compiles no graph that makes them")


def test_fields_and_entries_are_the_same():
    out = LogitsOutput(logits=torch.ones(2, 3))
    assert isinstance(out, dict)
    out.loss = torch.tensor(1.0)
    assert list(out) == out.keys() == list(dict(out)) == list({**out}) == ["loss", "logits"]
    out["logits"] = torch.zeros(1)
    assert torch.equal(out.logits, out[1])
    assert dict(out)["logits"] is out.logits
    out["loss"] = None
    assert list(out) == list(dict(out)) == ["logits"]
    assert out.loss is None
    assert out.get("loss", 5) == 5
    out.note = "no field"
    assert list(dict(out)) == ["logits"]
    for remove in (lambda: out.pop("logits"), out.clear, lambda: out.update(loss=1), lambda: out.setdefault("loss", 1)):
        with pytest.raises(TypeError, match="LogitsOutput: its fields stay: set one to None"):
            remove()
    with pytest.raises(TypeError, match="its fields stay"):
        del out["logits"]


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda out: pickle.loads(pickle.dumps(out))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies(again):
    out = PreTrainingOutput(prediction_logits=torch.ones(2), mlm_loss=torch.tensor(2.0))
    got = again(out)
    assert type(got) is PreTrainingOutput
    assert list(got) == list(dict(got)) == ["prediction_logits", "mlm_loss"]
    assert torch.equal(got.mlm_loss, out.mlm_loss)
    assert len(got) == 1, "extra fields have no index"


def test_made_anew_from_pairs():
    """As DataParallel and accelerate do, by the class of an output that they were given."""
    out = LogitsOutput(loss=torch.tensor(1.0), logits=torch.ones(2))
    for made in (type(out)((key, out[key] * 2) for key in out), type(out)({key: out[key] * 2 for key in out})):
        assert list(made) == ["loss", "logits"]
        assert made.loss == 2
        assert torch.equal(made.logits, torch.full((2,), 2.0))
