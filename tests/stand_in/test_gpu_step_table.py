"""benchmarks/gpu_step_table.py: the launches of a captured step, by name."""

from __future__ import annotations

from pathlib import Path

TOOL = Path(__file__).parents[2] / "benchmarks" / "gpu_step_table.py"
LAYERS, LAST, PARAMETERS = 12, 1, 110_106_428  # BERT-base with both heads


def test_the_launches_of_a_step(run):
    """What a layer launches once is there so many times, and nothing that takes a pass of its own over logits."""
    lines = run(str(TOOL), "--seqlen", "512", "--tokens", "2048", "--least", "0").splitlines()
    table = {cells[0]: list(map(float, cells[1:])) for line in lines if (cells := line.strip("| ").split(" | "))[1:]
             and cells[1].replace(".", "").isdigit()}  # fmt: skip
    count = {name: row[0] for name, row in table.items()}
    assert count["attention_fwd"] == count["attention_bwd_dq"] == count["attention_bwd_dkdv"] == LAYERS
    assert count["gelu_fwd"] == count["gelu_bwd"] == LAYERS + 1  # and the masked-LM head
    assert count["_foreach_copy_"] == LAYERS - LAST  # weights; gradients leave the products in float32
    assert count["partial_sums"] == LAYERS - LAST  # the biases of query, key and value
    products = sum(count[f"product, {name}"] for name in ("mm", "addmm", "addmm_"))
    # Of a layer four forward and eight backward, where query, key and value are one; six and twelve where they are not;
    # three for each dense layer of the heads.
    assert products == 12 * (LAYERS - LAST) + 18 * LAST + 3 * 4
    assert not {"slice_backward", "constant_pad_nd", "rows"} & set(count)
    # Master weights and two moments are read and written, gradients are read.
    assert table["adamw"][1:3] == [round(PARAMETERS * size / 1e9, 2) for size in (16, 12)]
    assert any(line.startswith("H100: MFU at most") for line in lines)
