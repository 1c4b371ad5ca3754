"""`fastbert.patch` on ColBERTs of libraries without tests here: whether [MASK] tokens behind a query are computed.

colbert-ai, pylate and rerankers fill queries up with [MASK], leave these out of the attention mask, and read their
vectors. The classes below do the same, with the names by which those libraries are recognised.
"""

from __future__ import annotations

import copy

import hf_parity as hf
import pytest
import torch
import transformers
from torch import nn

import fastbert


class ColBERT(nn.Module):
    """colbert-ai's and pylate's."""

    def __init__(self):
        super().__init__()
        self.bert = transformers.BertModel(hf.hf_config(), add_pooling_layer=False)

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids, attention_mask=attention_mask).last_hidden_state


class ColBERTModel(transformers.BertPreTrainedModel):
    """The one of rerankers, which divides by the vectors' norms: 0/0 where they are not computed."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.post_init()

    def forward(self, input_ids, attention_mask):
        vectors = self.bert(input_ids, attention_mask=attention_mask)[0]
        return vectors / vectors.norm(dim=-1, keepdim=True)


class Checkpoint(ColBERT):
    """colbert-ai's for inference."""


def _query():
    mask = torch.arange(9) < torch.tensor([9, 4, 6])[:, None]
    return {"input_ids": torch.randint(5, 50, mask.shape).masked_fill(~mask, 4), "attention_mask": mask.long()}


@pytest.mark.parametrize("make", [ColBERT, Checkpoint, lambda: ColBERTModel(hf.hf_config())])
@torch.no_grad()
def test_words_behind_a_query_have_vectors(make, only_ours):
    torch.manual_seed(0)
    theirs = make().eval()
    ours, given = fastbert.patch(copy.deepcopy(theirs)), _query()
    wanted = theirs(**given)
    only_ours()
    hf.assert_near(ours(**given), wanted, torch.float32, "vectors")


# pylate's settings: queries that are filled up with words that are attended to, and queries that are not filled up.
@pytest.mark.parametrize(
    ("setting", "computed"),
    [
        ({"do_query_expansion": True, "attend_to_expansion_tokens": False}, True),
        ({"do_query_expansion": True, "attend_to_expansion_tokens": True}, False),
        ({"do_query_expansion": False, "attend_to_expansion_tokens": False}, False),
    ],
)
@torch.no_grad()
def test_pads_of_a_colbert_whose_queries_need_none_are_not_computed(setting, computed):
    torch.manual_seed(0)
    model = ColBERT().eval()
    vars(model).update(setting)
    given = _query()
    assert bool(fastbert.patch(model)(**given)[given["attention_mask"] == 0].any()) is computed
    assert not fastbert.patch(model, pads="zeros")(**given)[given["attention_mask"] == 0].any()
