"""Options of transformers' from_pretrained and save_pretrained: those without a meaning here are refused."""

from __future__ import annotations

import json
import re
import shutil

import hf_parity as hf
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import fastbert
from fastbert.elmo_config import ElmoConfig
from fastbert.errors import CheckpointError, InputError
from fastbert.interop.convert import read_model
from fastbert.models.elmo import ElmoModel


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "bert"
    torch.manual_seed(0)
    transformers.BertModel(hf.hf_config()).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("options", [{"torch_dtype": torch.float16}, {"dtype": "float16"}, {"torch_dtype": "float16"}])
def test_both_names_of_the_dtype(saved, options):
    assert fastbert.BertModel.from_pretrained(saved, **options).dtype == torch.float16


def test_the_dtype_of_a_file_is_that_of_its_weights(tmp_path):
    """An ELMo's begins, as torch saves it, with a table of characters in 16-bit integers."""
    model = ElmoModel(ElmoConfig.from_name("elmo-1x16x2", vocab_size=20)).half()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = model.state_dict()
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert next(iter(state.values())).dtype == torch.int16
    read = ElmoModel.from_pretrained(tmp_path, dtype="auto")
    assert {name: tensor.dtype for name, tensor in read.state_dict().items()} == {n: t.dtype for n, t in state.items()}


@pytest.mark.parametrize("dtype", ["float99", 5, torch.device("cpu")])
def test_a_dtype_that_is_none_is_named(dtype, saved):
    """A number and a device were taken for the device to move to."""
    got = re.escape(repr(dtype))
    with pytest.raises(InputError, match=f"dtype must be a torch dtype or its name, or 'auto', got {got}$"):
        fastbert.BertModel.from_pretrained(saved, dtype=dtype)


def test_a_file_of_weights_is_no_directory(saved):
    """Its bytes were read as a configuration, whose first line is no UTF-8."""
    for read in (fastbert.BertModel.from_pretrained, fastbert.BertConfig.from_pretrained):
        with pytest.raises(InputError, match=r"model\.safetensors: expected the directory of a model, got a file of w"):
            read(saved / "model.safetensors")


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_torchs_default_dtype_is_not_that_of_the_parameters(saved, default):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        model = fastbert.BertModel.from_pretrained(saved)
    finally:
        torch.set_default_dtype(before)
    expected = fastbert.BertModel.from_pretrained(saved).state_dict()
    torch.testing.assert_close(dict(model.state_dict()), dict(expected), rtol=0, atol=0)  # dtypes too


def test_loading_options_that_change_nothing_are_passed_over(saved):
    model = fastbert.BertModel.from_pretrained(
        saved, low_cpu_mem_usage=True, attn_implementation="sdpa", device_map=None
    )
    assert not {"low_cpu_mem_usage", "attn_implementation", "device_map"} & set(model.config.to_dict())
    assert model.dtype == torch.float32


@pytest.mark.parametrize(
    "name",
    [
        *("device_map", "subfolder", "variant", "output_loading_info", "quantization_config", "load_in_8bit"),
        "state_dict",
    ],
)
def test_loading_options_of_which_something_is_expected_are_refused(saved, name):
    with pytest.raises(InputError, match=f"^{name} is not an option of from_pretrained here: "):
        fastbert.BertModel.from_pretrained(saved, **{name: "auto"})


@pytest.mark.parametrize("config", [None, fastbert.BertConfig(**hf.hf_config().to_dict(), of_my_own=1)])
def test_a_misspelt_field_is_refused(saved, config, tmp_path):
    """transformers refuses it too; kept as one more key of the configuration, it would change nothing."""
    for name in ("num_label", "hidden_droput_prob"):
        with pytest.raises(InputError, match=f"^from_pretrained takes its options and fields .*, got '{name}'$"):
            fastbert.BertForSequenceClassification.from_pretrained(saved, config=config, **{name: 3})
    directory = shutil.copytree(saved, tmp_path / "own")
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, "of_my_own": 1}))
    fields = {"num_labels": 3, "hidden_dropout_prob": 0.0, "of_my_own": 2}
    model = fastbert.BertForSequenceClassification.from_pretrained(directory, config=config, **fields)
    assert {name: getattr(model.config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("said", "method"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ("int8", "int8"),
    ],
)
def test_quantized_weights_are_refused(saved, said, method, tmp_path):
    """The tensors of some formats fit: 8-bit floats under the names of BERT's weights, with scales beside them."""
    directory = shutil.copytree(saved, tmp_path / "quantized")
    state = load_file(directory / "model.safetensors")
    layers = [name for name in state if "layer." in name and name.endswith("dense.weight")]
    state |= {name: (100 * state[name]).to(torch.float8_e4m3fn) for name in layers}
    save_file(state | {f"{name}_scale": torch.tensor(0.01) for name in layers}, directory / "model.safetensors")
    file = directory / "config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "quantization_config": said}))
    expected = rf"^{directory}: expected float weights, got ones that {method} has quantized \(quantization_config in "
    for read in (fastbert.BertModel.from_pretrained, fastbert.SentenceEncoder.from_pretrained, read_model):
        with pytest.raises(CheckpointError, match=expected):
            read(directory)
    file.write_text(json.dumps({**values, "quantization_config": None}))
    assert fastbert.BertModel.from_pretrained(directory).dtype == torch.float32


def test_one_process_of_several_saves_what_they_have_gathered(tmp_path):
    _, ours = hf.pair("BertForMaskedLM")
    gathered = {name: tensor * 2 for name, tensor in ours.state_dict().items()}
    gathered["cls.predictions.decoder.weight"] = gathered["bert.embeddings.word_embeddings.weight"].view(hf.VOCAB, -1)
    ours.save_pretrained(tmp_path / "other", False, gathered)
    assert not (tmp_path / "other").exists()
    # As scripts that use accelerate call it.
    options = {"save_function": torch.save, "safe_serialization": True, "max_shard_size": "5GB", "push_to_hub": False}
    ours.save_pretrained(tmp_path / "main", is_main_process=True, state_dict=gathered, **options)
    loaded = fastbert.BertForMaskedLM.from_pretrained(tmp_path / "main").state_dict()
    assert all(torch.equal(tensor, gathered[name]) for name, tensor in loaded.items())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"push_to_hub": True}, "huggingface_hub"),
        ({"safe_serialization": False}, "--to pickle"),
        ({"variant": "fp16"}, "a separate directory"),
        ({"state_dictionary": {}}, "leave it out"),
    ],
)
def test_saving_options_of_which_something_is_expected_are_refused(tmp_path, option, said):
    _, ours = hf.pair("BertModel")
    with pytest.raises(InputError, match=said):
        ours.save_pretrained(tmp_path / "out", **option)
    assert not (tmp_path / "out").exists()


def test_a_configuration_of_transformers(saved):
    theirs = transformers.BertConfig.from_pretrained(saved)
    model = fastbert.BertModel.from_pretrained(saved, config=theirs)
    assert isinstance(model.config, fastbert.BertConfig)
    assert fastbert.BertModel.from_pretrained(saved, config=theirs, num_labels=5).config.num_labels == 5


@pytest.mark.parametrize(("size", "multiple", "rows"), [(33, 8, 40), (40, 8, 40), (None, 64, 64)])
def test_a_vocabulary_of_a_multiple(saved, size, multiple, rows):
    model = fastbert.BertModel.from_pretrained(saved)
    before = model.get_input_embeddings().weight.detach().clone()
    assert len(before) == hf.VOCAB < rows or size is not None
    new = model.resize_token_embeddings(size, pad_to_multiple_of=multiple)
    assert new.num_embeddings == model.config.vocab_size == rows
    kept = min(rows, len(before))
    assert torch.equal(new.weight[:kept], before[:kept])
    with pytest.raises(InputError, match="pad_to_multiple_of must be at least 1, got 0"):
        model.resize_token_embeddings(8, pad_to_multiple_of=0)
