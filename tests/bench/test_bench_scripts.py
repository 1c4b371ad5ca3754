"""What the scripts of benchmarks/ give the other side."""

import sys

import bench_encode
import finetune_against_transformers
import pytest
import torch


def parse(monkeypatch, script, *words):
    monkeypatch.setattr(sys, "argv", ["script", *words])
    return script.parse()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--peer-backend", "onnx"],
            "--peer-backend onnx needs onnxruntime, which is not installed (pip install 'sentence-transformers[onnx]')",
        ),
        (
            ["--peer-backend", "openvino"],
            "--peer-backend openvino needs openvino, which is not installed "
            "(pip install 'sentence-transformers[openvino]')",
        ),
        (
            ["--peer-backend", "openvino", "--peer-precision", "bf16"],
            "--peer-precision bf16 is torch's: expected --peer-backend torch, got openvino",
        ),
    ],
)
def test_a_peer_that_cannot_be_had_is_refused_in_one_sentence(words, sentence, monkeypatch, capsys):
    monkeypatch.setattr(bench_encode, "installed", lambda module: False)
    with pytest.raises(SystemExit) as ended:
        parse(monkeypatch, bench_encode, *words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {sentence}\n")


def test_a_part_of_what_is_not_installed_is_not_either():
    assert bench_encode.installed("json.decoder")
    assert not bench_encode.installed("no_such_module.part")
    assert not bench_encode.installed("json.no_such_part")


def test_options_of_the_peer(monkeypatch):
    args = parse(monkeypatch, bench_encode)
    assert (args.peer_backend, args.peer_precision) == ("torch", "fp32")
    assert bench_encode.peer_options("torch", "fp32", 2) == {}
    assert bench_encode.peer_options("torch", "bf16", 2) == {"model_kwargs": {"dtype": torch.bfloat16}}
    found = bench_encode.peer_options("openvino", "fp32", 2)
    assert found["backend"] == "openvino"
    assert found["model_kwargs"]["ov_config"] == {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    pytest.importorskip("onnxruntime")
    assert bench_encode.peer_options("onnx", "fp32", 2)["model_kwargs"]["session_options"].intra_op_num_threads == 2


def test_a_row_of_a_peer_tells_its_difference_if_there_is_one(capsys):
    assert "largest_difference" not in bench_encode.report("peer", 10, [2.0], None, None, False)
    assert bench_encode.report("peer, bf16", 10, [2.0], None, 0.01, False)["largest_difference"] == 0.01
    ours = bench_encode.report("ours", 10, [1.0, 2.0], [4.0, 6.0], 1e-6, False)
    assert (ours["ratio"], ours["largest_difference"]) == (3.5, 1e-6)
    assert capsys.readouterr().out.count("largest difference") == 2


def test_the_peer_is_fine_tuned_with_the_fused_optimiser(monkeypatch):
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": 0.01}]
    optimizer = finetune_against_transformers.adamw(groups, 1e-3)
    assert optimizer.param_groups[0]["fused"]
    groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    plain = torch.optim.AdamW

    def refuses(parameters, fused=False, **options):
        if fused:
            raise RuntimeError("`fused=True` requires all the params to be floating point Tensors of supported devices")
        return plain(parameters, **options)

    monkeypatch.setattr(torch.optim, "AdamW", refuses)
    assert not finetune_against_transformers.adamw(groups, 1e-3).param_groups[0]["fused"]
    args = parse(monkeypatch, finetune_against_transformers, "sst2", "--train", "t", "--dev", "d")
    assert finetune_against_transformers.settings_of(args)["peer_optimizer"] == "fused"
