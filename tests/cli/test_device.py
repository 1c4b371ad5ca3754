"""Where the commands compute: on the GPU where torch finds one. A device without numbers stands for it here."""

import pretraining_runs
import pytest
import tiny_bert
import torch

from fastbert import SentenceEncoder, _native, hardware
from fastbert.cli.main import main
from fastbert.errors import InputError
from fastbert.train import distributed

ROWS = "sentence\tlabel\n" + "a fine film\t1\na dull one\t0\n" * 8


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, a fine-tuned one, data to pre-train on, and two files."""
    directory = tmp_path_factory.mktemp("place")
    tiny_bert.save(directory / "model")
    pretraining_runs.prepare_data(directory / "data")
    (directory / "rows.tsv").write_text(ROWS)
    (directory / "lines.txt").write_text("a fine film\n")
    tune = [
        "finetune",
        "sst2",
        "--model",
        "model",
        "--train",
        "rows.tsv",
        "--dev",
        "rows.tsv",
        "--epochs",
        "1",
        "--max-seqlen",
        "24",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert main([*tune, "--out", "tuned"]) == 0
    return directory


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(hardware, "default_device", lambda: torch.device("meta"))


COMMANDS = {
    "pretrain": "pretrain --data data --model 2x32x2 --out run --steps 4 --samples.max-seqlen 32 --token-budget 256",
    "plan": "pretrain --data data --model 2x32x2 --out run --steps 2 --plan --plan-throughput measure",
    "finetune": "finetune sst2 --model model --train rows.tsv --dev rows.tsv --out other --max-seqlen 24 --log-every 1",
    "restarts": "finetune sst2 --model model --train rows.tsv --dev rows.tsv --out two --max-seqlen 24 --restarts 2",
    "evaluate": "evaluate sst2 --model tuned --data rows.tsv",
    "predict": "predict sst2 --model tuned --data rows.tsv",
    "fill-mask": "fill-mask --model model [MASK]",
    "extract": "extract --model model --layers last --out features lines.txt",
    "encode": "encode --model model --out vectors.npy lines.txt",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_computes_where_the_gpu_would_be(place, elsewhere, monkeypatch, capsys, name):
    monkeypatch.chdir(place)
    assert main(COMMANDS[name].split()) != 0
    said = capsys.readouterr().err
    assert "meta" in said, said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_comes_to_the_end_on_the_device_of_this_machine(place, monkeypatch, capsys, name):
    monkeypatch.chdir(place)
    assert main(COMMANDS[name].split()) == 0
    said = capsys.readouterr().out
    if name in ("pretrain", "finetune"):
        assert f"device     {hardware.default_device()}, " in said


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
def test_a_sentence_encoder_is_put_on_the_gpu_but_for_int8(place, elsewhere):
    def where(**options) -> str:
        return SentenceEncoder.from_pretrained(place / "model", **options).model.device.type

    assert where() == where(precision="bf16") == "meta"
    assert where(device="cpu") == where(precision="int8") == "cpu"
    with pytest.raises(InputError, match="device must be the CPU for int8, got meta"):
        where(precision="int8", device="meta")


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_int8_is_computed_on_the_cpu(place, elsewhere, monkeypatch, command):
    monkeypatch.chdir(place)
    assert main([*COMMANDS[command].split(), "--precision", "int8"]) == 0


def test_one_process_leaves_a_model_on_the_gpu_that_it_is_on():
    model = torch.nn.Linear(2, 2, device="meta")  # to which no default device of this machine is equal
    distributed.place(model, distributed.World())
    assert model.weight.device.type == "meta"
