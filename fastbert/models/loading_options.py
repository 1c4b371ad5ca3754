"""Keywords that code written for transformers passes to `from_pretrained` and `save_pretrained`: ignored or refused."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from ..model_config import ModelConfig

# Keywords of loading that are ignored, since they would change nothing here, and those that are refused with a hint.
_LOADING_PASSED_OVER = {
    *("low_cpu_mem_usage", "attn_implementation", "use_safetensors", "weights_only", "trust_remote_code"),
    *("local_files_only", "cache_dir", "force_download", "resume_download", "proxies", "token", "revision"),
    *("use_auth_token", "code_revision", "mirror", "from_tf", "from_flax", "adapter_kwargs"),
    *("max_memory", "offload_folder", "offload_state_dict", "offload_buffers"),
}
_LOADING_REFUSED = {
    "device_map": "move the model with .to()",
    "subfolder": "name that directory itself",
    "variant": "name the directory that holds these weights",
    "output_loading_info": "read the model's load_report",
    "quantization_config": "use fastbert.quantize",
    "load_in_8bit": "use fastbert.quantize",
    "load_in_4bit": "use fastbert.quantize",
    "state_dict": "call the model's load_state_dict",
}

# The same for saving; keywords that are refused are ignored with one of the values listed.
_SAVING_PASSED_OVER = {
    *("save_function", "max_shard_size", "token", "repo_id", "save_peft_format", "save_original_format"),
}
_SAVING_REFUSED: dict[str, tuple[tuple, str]] = {
    "push_to_hub": ((None, False), "upload the directory with huggingface_hub"),
    "safe_serialization": ((None, True), "write a pickle with fastbert convert --to pickle"),
    "variant": ((None,), "save into a separate directory"),
}


def check_saving_options(options: dict) -> None:
    """Raises InputError for a keyword that asks for other files than those that are written."""
    for name, value in options.items():
        harmless, instead = _SAVING_REFUSED.get(name, ((value,) if name in _SAVING_PASSED_OVER else (), "leave it out"))
        if all(value is not x for x in harmless):
            raise InputError(f"{name}={value!r:.50} is not an option of save_pretrained here: {instead}")


def without_loading_options(options: dict) -> dict:
    """The keywords that are left, for the configuration. Raises InputError for one that is refused."""
    for name, instead in _LOADING_REFUSED.items():
        if options.get(name):
            raise InputError(f"{name} is not an option of from_pretrained here: {instead}")
    return {
        name: value
        for name, value in options.items()
        if name not in _LOADING_PASSED_OVER and name not in _LOADING_REFUSED
    }


def check_fields(overrides: dict, config_class: type[ModelConfig], held: Mapping[str, object]) -> None:
    """Raises InputError for a keyword that is not a field, such as a misspelt one: it would silently have no effect."""
    known = {*config_class.defaults, *held, "num_labels", "id2label", "label2id", "model_type"}
    strange = next((name for name in overrides if name not in known), None)
    if strange is not None:
        raise InputError(f"from_pretrained takes its options and fields of the configuration, got {strange!r:.50}")
