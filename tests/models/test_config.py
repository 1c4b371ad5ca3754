"""BertConfig against transformers' and against the papers' tables."""

import copy
import json
import pickle

import pytest

from fastbert import BertConfig
from fastbert.elmo_config import ElmoConfig
from fastbert.errors import InputError
from fastbert.gpt_config import GPT2Config, GPTConfig
from fastbert.models.static import StaticConfig

# Table 6 of Devlin et al. 2019: layers, hidden size, heads; the inner layer is 4 x hidden size (section 3).
TABLE_6 = [(3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)]
# Turc et al. 2019: every layer count with every hidden size; heads of 64.
MINIATURES = [(layers, hidden) for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)]


def shape(config):
    return config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size


@pytest.mark.parametrize(("layers", "hidden", "heads"), TABLE_6)
def test_rows_of_table_6_have_names(layers, hidden, heads):
    assert shape(BertConfig.from_name(f"{layers}x{hidden}x{heads}")) == (layers, hidden, heads, 4 * hidden)


def test_all_24_miniatures_have_names():
    assert len(MINIATURES) == 24
    for layers, hidden in MINIATURES:
        expected = (layers, hidden, hidden // 64, 4 * hidden)
        for name in (
            f"{layers}x{hidden}",
            f"L-{layers}_H-{hidden}",
            f"google/bert_uncased_L-{layers}_H-{hidden}_A-{hidden // 64}",
        ):
            assert shape(BertConfig.from_name(name)) == expected, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny", (2, 128, 2, 512)),
        ("mini", (4, 256, 4, 1024)),
        ("small", (4, 512, 8, 2048)),
        ("medium", (8, 512, 8, 2048)),
        ("base", (12, 768, 12, 3072)),
        ("bert-base-uncased", (12, 768, 12, 3072)),
        ("bert-large-cased", (24, 1024, 16, 4096)),
    ],
)
def test_published_names(name, expected):
    assert shape(BertConfig.from_name(name)) == expected


def test_the_cased_models_have_their_own_vocabulary():
    assert BertConfig.from_name("bert-base-cased").vocab_size == 28996
    assert BertConfig.from_name("bert-base-cased", vocab_size=100).vocab_size == 100
    assert BertConfig.from_name("bert-base-uncased").vocab_size == 30522


@pytest.mark.parametrize("make", [BertConfig.base, BertConfig.large])
def test_the_number_of_parameters_is_that_of_transformers(make):
    import torch
    import transformers

    config = make()
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(**config.to_dict()))
    assert config.num_parameters() == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("huge", "as in 6x768x3, got 'huge'"),
        ("4x100", "the hidden size of '4x100' must be a multiple of 64"),
        ("6x768x5", "hidden_size must be a multiple of num_attention_heads, got 768 and 5"),
        ("0x256", "num_hidden_layers must be an integer between 1 and 1024, got 0"),
        ("4x0", "hidden_size must be an integer between 1 and 65536, got 0"),
        ("999999999999x64", "as in 6x768x3, got '999999999999x64'"),
        ("", "as in 6x768x3, got ''"),
        ("-4x256", "as in 6x768x3, got '-4x256'"),
    ],
)
def test_a_name_that_is_none_is_refused(name, said):
    with pytest.raises(InputError, match=said):
        BertConfig.from_name(name)


def test_fields_and_defaults_are_those_of_transformers():
    import transformers
    from patched import V5

    theirs = transformers.BertConfig()
    ours = BertConfig()
    # transformers 5 has learned positions only, and no field for it; a BiLSTM is ours alone.
    own = {"position_embedding_type": "absolute", "bilstm_units": None}
    assert {name: getattr(ours, name) for name in own} == own
    assert getattr(theirs, "position_embedding_type", "absolute") == "absolute"
    for name, value in ours.to_dict().items():
        assert name in own or getattr(theirs, name) == value, name
    if not V5:
        return  # transformers 4 keeps what concerns generation in every configuration
    # The encoder-decoder flag and what concerns the hub are not BERT's.
    for name in set(theirs.to_dict()) - {"_name_or_path", "transformers_version", "is_encoder_decoder"}:
        assert hasattr(ours, name), name


@pytest.mark.parametrize(
    "changes", [{}, {"num_labels": 3}, {"id2label": {0: "no", 1: "yes"}, "hidden_act": "gelu_new"}]
)
def test_a_config_goes_to_transformers_and_back(tmp_path, changes):
    import transformers

    theirs = transformers.BertConfig(hidden_size=128, num_attention_heads=2, classifier_dropout=0.3, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = BertConfig.from_pretrained(tmp_path / "theirs")
    assert ours.num_labels == theirs.num_labels
    assert ours.id2label == theirs.id2label
    assert ours.label2id == {name: index for index, name in theirs.id2label.items()}
    ours.save_pretrained(tmp_path / "ours")
    back = transformers.BertConfig.from_pretrained(tmp_path / "ours").to_dict()
    for name, value in theirs.to_dict().items():
        if value is not None:
            assert back[name] == value, name
    assert BertConfig.from_hf(theirs).to_dict().items() >= {"hidden_size": 128, "classifier_dropout": 0.3}.items()
    assert BertConfig.from_hf(ours) is ours


def test_unknown_keys_are_kept_and_written_back(tmp_path):
    file = {"vocab_size": 100, "gradient_checkpointing": False, "my_key": {"deep": [1, None]}, "head_dim": 7}
    # Names of our own methods in a file are data like any other, and replace nothing.
    file |= {"to_dict": 3, "validate": "x", "position_embedding_type": "absolute", "model_type": "bert"}
    (tmp_path / "config.json").write_text(json.dumps(file))
    config = BertConfig.from_pretrained(tmp_path)
    assert config.my_key == {"deep": [1, None]}
    assert config.head_dim == 64
    assert "head_dim" in config
    config.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written.items() >= file.items()
    assert list(written) == sorted(written)


def test_a_config_copies_and_pickles():
    config = BertConfig.from_dict({"num_labels": 5, "head_dim": 7, "extra": [1]})
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin == config
        assert twin is not config
    twin.extra.append(2)
    twin.num_labels = 2
    assert config.extra == [1]
    assert config.num_labels == 5
    assert twin != config


def test_another_number_of_labels_than_names_is_told(tmp_path, caplog):
    path = tmp_path / "config.json"
    for number, overrides in ((3, {}), (2, {"num_labels": 3}), (2, {"id2label": {0: "x"}}), (None, {})):
        path.write_text(json.dumps({"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": number}))
        BertConfig.from_pretrained(tmp_path, **overrides)
    assert not caplog.messages
    path.write_text(json.dumps({"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": 2}))
    assert BertConfig.from_pretrained(tmp_path).num_labels == 3
    assert caplog.messages == [f"{path}: num_labels is 2, but id2label names 3: the names are used"]


def test_labels():
    config = BertConfig.from_dict({"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": 2})
    assert config.num_labels == 3
    assert config.label2id == {"a": 0, "b": 1, "c": 2}
    config.num_labels = 4
    assert config.id2label[3] == "LABEL_3"
    assert config.label2id["LABEL_3"] == 3
    again = BertConfig.from_dict({"id2label": {"0": "a", "1": "b", "2": "c"}}, num_labels=2)
    assert again.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    same = BertConfig.from_dict({"id2label": {"0": "a", "1": "b", "2": "c"}}, num_labels=3)
    assert same.id2label == {0: "a", 1: "b", 2: "c"}
    assert BertConfig(label2id={"yes": 1, "no": 0, "maybe": 2}).id2label == {0: "no", 1: "yes", 2: "maybe"}
    two_names = {"a": 0, "b": 1, "B": 1}
    assert BertConfig(id2label={0: "a", 1: "b"}, label2id=two_names).label2id == two_names


def test_of_two_files_that_of_hugging_face_is_read(tmp_path):
    """A directory that was converted has google-research's beside it."""
    (tmp_path / "bert_config.json").write_text(json.dumps({"hidden_size": 24, "num_attention_heads": 2}))
    assert BertConfig.from_pretrained(tmp_path).hidden_size == 24
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 48, "num_attention_heads": 2}))
    assert BertConfig.from_pretrained(tmp_path).hidden_size == 48


def test_what_is_private_to_another_class_is_left_out():
    class Theirs:
        def to_dict(self):
            return {"hidden_size": 48, "num_attention_heads": 2, "_commit": "abc", "task": "x"}

    values = BertConfig.from_hf(Theirs()).to_dict()
    assert (values["task"], "_commit" in values) == ("x", False)


def test_no_names_of_labels_are_as_none_given():
    # So it is in a config.json of a model without a head, which transformers reads.
    assert BertConfig(id2label={}, label2id={}).num_labels == 2
    assert BertConfig.from_dict({"id2label": {}, "num_labels": 3}).id2label[2] == "LABEL_2"
    assert BertConfig.from_dict({"id2label": {}}, num_labels=3).num_labels == 3


@pytest.mark.parametrize("pad", ["x", 30522, [0]])
def test_a_pad_of_an_elmo_is_an_id(pad):
    with pytest.raises(InputError, match="pad_token_id must be an id below vocab_size 30522, got"):
        ElmoConfig(pad_token_id=pad)


def test_names_of_labels_that_are_none_give_way_to_a_number():
    """As other names do: len() of them was an error of Python's."""
    assert BertConfig.from_dict({"id2label": 5}, num_labels=3).id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}


def test_the_old_name_of_dtype_is_read():
    import torch

    assert BertConfig(torch_dtype="float16").dtype == "float16"
    assert BertConfig(dtype=torch.bfloat16).dtype == "bfloat16"
    assert "torch_dtype" not in BertConfig(torch_dtype="float16").to_dict()


@pytest.mark.parametrize(
    ("act", "approximate"), [("gelu", "none"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh")]
)
def test_the_two_gelus_are_told_apart(act, approximate):
    import torch
    from transformers.activations import ACT2FN

    config = BertConfig(hidden_act=act)
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    mine = torch.nn.functional.gelu(x, approximate=config.gelu_approximate)
    other = torch.nn.functional.gelu(x, approximate="tanh" if approximate == "none" else "none")
    assert config.gelu_approximate == approximate
    torch.testing.assert_close(mine, ACT2FN[act](x), rtol=0, atol=1e-12)
    assert (other - mine).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": "yes"}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"hidden_size": 100}, "hidden_size"),
        ({"hidden_size": 10**12}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_hidden_layers": 1000, "hidden_size": 65536, "num_attention_heads": 64}, "parameters"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"pad_token_id": 30522}, "pad_token_id"),
        ({"pad_token_id": -30523}, "pad_token_id"),
        ({"problem_type": "guessing"}, "problem_type"),
        ({"bilstm_units": 0}, "bilstm_units"),
        ({"model_type": "roberta"}, "model_type"),
        ({"id2label": ["a", "b"]}, "id2label"),
        ({"num_labels": 2, "id2label": {0: "a"}}, "num_labels"),
    ],
)
def test_a_value_that_does_not_fit_is_named_in_one_sentence(changes, named):
    with pytest.raises(InputError) as caught:
        BertConfig(**changes)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


HUGE = {
    GPTConfig: {"n_layer": 1000, "n_embd": 65536, "n_head": 64},
    GPT2Config: {"n_layer": 1000, "n_embd": 65536, "n_head": 64},
    ElmoConfig: {"num_hidden_layers": 64, "hidden_size": 1 << 16, "lstm_size": 1 << 16},
    StaticConfig: {"vocab_size": 1 << 24, "hidden_size": 1 << 16},
}


@pytest.mark.parametrize("kind", HUGE)
def test_what_all_kinds_share_is_checked_of_each(kind):
    for changes, named in (
        ({"problem_type": "guessing"}, "problem_type must be one of regression, .* got 'guessing'"),
        ({"add_cross_attention": True}, "add_cross_attention must be false"),
        (HUGE[kind], "a model must have at most 100000000000 parameters, got "),
    ):
        with pytest.raises(InputError, match=named):
            kind(**changes)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b'{"vocab_size": -1}', b"[" * 100_000])
def test_a_damaged_config_json_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json"):
        BertConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.ckpt-20000"])
def test_a_file_of_weights_in_place_of_its_directory_is_called_that(tmp_path, name):
    """A TensorFlow checkpoint is named by the beginning of its files' names."""
    (tmp_path / (f"{name}.index" if "ckpt" in name else name)).touch()
    with pytest.raises(InputError, match=f"{name}: expected the directory of a model, got a file of weights"):
        BertConfig.from_pretrained(tmp_path / name)


def test_an_empty_config_json_is_called_that(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\n")
    with pytest.raises(InputError, match=r"config\.json: expected JSON, got an empty file$"):
        BertConfig.from_pretrained(tmp_path)


def test_a_directory_without_config_is_named(tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        BertConfig.from_pretrained(tmp_path)
