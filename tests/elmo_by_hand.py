"""A plain ELMo: one sentence, one word, one step at a time, in the dtype of its weights, straight from the papers."""

from __future__ import annotations

import torch
from torch import Tensor


def word_vector(w: dict[str, Tensor], characters: Tensor) -> Tensor:
    """(W,) characters -> (P,): Kim et al. 2016, equations 5 to 8, with ReLU; and a projection."""
    x = torch.stack([w["embeddings.cnn.embeddings.weight"][int(c)] for c in characters])  # (W, E)
    found, number = [], 0
    while f"embeddings.cnn.convolutions.{number}.weight" in w:
        filters = w[f"embeddings.cnn.convolutions.{number}.weight"]  # (F, E, width)
        bias = w[f"embeddings.cnn.convolutions.{number}.bias"]
        width = filters.shape[2]
        windows = torch.stack([x[i : i + width].T for i in range(len(x) - width + 1)])  # (windows, E, width)
        scores = torch.stack([(filters * window).sum((1, 2)) + bias for window in windows]).relu()
        found.append(scores.max(0).values)
        number += 1
    y, number = torch.cat(found), 0
    while f"embeddings.cnn.highways.{number}.gate.weight" in w:
        name = f"embeddings.cnn.highways.{number}"
        t = torch.sigmoid(w[f"{name}.gate.weight"] @ y + w[f"{name}.gate.bias"])
        y = t * torch.relu(w[f"{name}.transform.weight"] @ y + w[f"{name}.transform.bias"]) + (1 - t) * y
        number += 1
    return w["embeddings.cnn.projection.weight"] @ y + w["embeddings.cnn.projection.bias"]


def lstm(w: dict[str, Tensor], name: str, xs: list[Tensor], cell_clip, projection_clip) -> list[Tensor]:
    """An LSTM with projection (Sak et al. 2014, equations 1 to 6 without peepholes), from the first x to the last."""
    weights = [w[f"{name}.{leaf}_l0"] for leaf in ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")]
    w_x, w_h, w_r, b_x, b_h = weights
    h, c = w_r.new_zeros(w_r.shape[0]), w_r.new_zeros(w_r.shape[1])
    states = []
    for x in xs:
        i, f, g, o = (w_x @ x + b_x + w_h @ h + b_h).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        if cell_clip is not None:
            c = torch.clamp(c, -cell_clip, cell_clip)
        h = w_r @ (torch.sigmoid(o) * torch.tanh(c))
        if projection_clip is not None:
            h = torch.clamp(h, -projection_clip, projection_clip)
        states.append(h)
    return states


def states(w: dict[str, Tensor], characters: Tensor, layers: int, cell_clip=None, projection_clip=None):
    """States of one sentence, (n, P) a layer: forward, backward."""
    words = [word_vector(w, row) for row in characters]
    directions = []
    for side in ("forward", "backward"):
        found = [words]
        for number in range(layers):
            xs = found[-1] if side == "forward" else found[-1][::-1]
            hs = lstm(w, f"encoder.{side}_layers.{number}", xs, cell_clip, projection_clip)
            hs = hs if side == "forward" else hs[::-1]
            # Peters et al. 2018, section 3.4: a residual connection from the first to the second layer.
            found.append([h + x for h, x in zip(hs, found[-1], strict=True)] if number else hs)
        directions.append([torch.stack(layer) for layer in found])
    return directions


def loss(w: dict[str, Tensor], sentences: list[list[int]], table: Tensor, layers: int, **clips) -> Tensor:
    """The mean of -log p of all tokens given those before them, and given those after them (section 3.1).

    Args:
        w: names as of `ElmoForPreTraining`, in any floating dtype.
    """
    own = {name.removeprefix("elmo."): value for name, value in w.items()}
    before, after = [], []
    for ids in sentences:
        forward, backward = states(own, table[ids], layers, **clips)
        for k in range(len(ids)):
            if k > 0:
                logits = own["decoder.weight"] @ forward[-1][k - 1] + own["decoder.bias"]
                before.append(-logits.log_softmax(0)[ids[k]])
            if k + 1 < len(ids):
                logits = own["decoder.weight"] @ backward[-1][k + 1] + own["decoder.bias"]
                after.append(-logits.log_softmax(0)[ids[k]])
    return (torch.stack(before).mean() + torch.stack(after).mean()) / 2
