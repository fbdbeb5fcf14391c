"""Small, freshly initialised models of public packages, one for each model type of transformers."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

BATCH, LENGTH, WIDTH, VOCABULARY, IMAGE = 2, 12, 64, 256, 64
#: Standard deviation asked of every initialiser: parameters with another one ignore the configuration.
INITIALIZER_RANGE = 0.05
MOST_PARAMETERS, SECONDS = 20_000_000, 20
# Ordinary tokens; special tokens have identifiers outside.
_FIRST_TOKEN, _LAST_TOKEN = 20, 200


@dataclasses.dataclass(frozen=True)
class ZooModel:
    """Small model of a public package.

    Attributes
    ----------
    name : str
        Package and model, such as "transformers: llama".
    make : callable
        Returns the freshly initialised model.
    inputs : callable
        Returns the keyword inputs of one forward, given the model.
    """

    name: str
    make: Callable[[], Any]
    inputs: Callable[[Any], Mapping[str, Any]]


# First match wins: a number above the limit becomes the limit, in lists too.
_LIMITS: list[tuple[int | None, str]] = [
    (None, "section|initializer|theta|factor|ratio|_id$|_index$|_std|scale$|rate$|sampling|feat_extract|xpath|stride"),
    (None, "type_vocab|vocab_offset|additional_vocab|layer_type|kernel|max_bins|pad_|window_size_per_stage"),
    (8, "patch_size|tubelet|sliding_window|attention_window|local_attention|block_size|chunk_size|context_size"),
    (8, "image_embedding_size|mamba_n(um)?_heads|expert_capacity|index_topk"),
    (IMAGE, "image_size|img_size|crop_size"),
    (WIDTH // 2, "^qk_head_dim$|lora_rank$|lowrank$|num_pos_feats"),
    (WIDTH // 4, "(head_dim|d_head|dim_head|d_kv|rotary_dim|kv_channels|key_size|key_dim)$|state_size|d_state"),
    (2, "(key_value_heads|kv_heads|num_key_heads|top_?k|moe_k)$|experts_per_tok|moe_topk"),
    (4, "(heads?|heads_per_stage|experts?|expert_num|window_sizes?)$"),
    (0, "num_kv_shared_layers"),
    (1, "(n_groups?|topk_group|num_expert_group|num_group|^num_groups|upsample_groups|^depths)$"),
    (1, "blocks_per_stage|num_block_repeats|stage_numb_of_layers|stage_num_blocks"),
    (2, "(layers?|depth|num_blocks|num_hidden_groups|n_blocks)$"),
    (128, "position|max_seq|n_ctx|context_length|seq_len"),
    (VOCABULARY, "vocab|codebook_size|num_embeddings|num_buckets|head_out_channels"),
    (2 * WIDTH, "intermediate|ffn|d_ff|mlp_dim|n_inner|d_inner|feedforward|linear_units|feed_forward_h"),
    (LENGTH, "query_tokens|num_latents|num_denoising|num_negatives|num_quer"),
    (WIDTH, "hidden|embed|model|emb|proj|dim|width|fpn|channels?$|filters|units|bottleneck"),
]


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """Return a small version of `config`, as a dictionary like it."""
    staged, convolutional = isinstance(config.get("depths"), list | tuple), "stage_in_channels" in config
    depth = next((config[key] for key in _DEPTHS if isinstance(config.get(key), int) and not staged), 0)
    lists = [value for value in config.values() if isinstance(value, list | tuple) and len(value) == depth > 0]
    kinds = [value for value in lists if isinstance(value[0], str)]
    layers = min(depth, max([2, *(1 + max(map(kind.index, kind)) for kind in kinds)]), 8)
    heads = next((config[key] for key in ("num_attention_heads", "n_head", "num_heads") if config.get(key)), None)
    special = iter(range(_LAST_TOKEN, VOCABULARY))

    def small(name: str, value: Any) -> Any:
        name = str(name)
        if name == "per_layer_config" and value:
            return {index: shrink(inner) for index, inner in value.items() if int(index) < layers}
        if name == "rope_parameters" and value:
            return _rope(value)
        if isinstance(value, dict):
            return value if name.endswith(("2label", "2id")) else shrink(value)
        if value is None:
            return _MISSING.get(name)
        if isinstance(value, list | tuple) and value:
            if len(value) == depth > layers:
                value = value[:layers]
            if all(isinstance(item, int) for item in value):
                if convolutional or re.search("channel|filters", name):
                    return value
                if re.search("hidden_sizes|embed_dims?$|dim_per_stage|hidden_dims|dims$", name):
                    return type(value)(min(item, WIDTH << index) for index, item in enumerate(value))
                if "heads" in name:
                    return type(value)(min(1 << (item.bit_length() - 1), 4) for item in value)
            return type(value)(small(name, item) for item in value)
        if name == "attention_multiplier" and value < 1:  # for heads of the original size
            return (WIDTH // 4) ** -0.5
        if isinstance(value, bool) or not isinstance(value, int) or (staged and name in _DEPTHS):
            value = "resnet18" if value == "resnet50" else value
            return INITIALIZER_RANGE if "initializer_range" in name and isinstance(value, float) else value
        if re.search("token_id$|token_index$|_token$", name):
            return value if value < _FIRST_TOKEN else next(special)
        most = next((most for most, pattern in _LIMITS if re.search(pattern, name)), None)
        if name in _DEPTHS:
            most = layers
        elif name == "window_size" and value > WIDTH:  # pixels, else patches
            most = WIDTH // 2
        elif re.search("key_value_heads$|kv_heads$", name) and value in (heads, config.get(name.replace(*_QUERIES))):
            most = 4
        return value if most is None else min(value, most)

    dropped = () if staged else ("out_features", "out_indices", "_out_features", "_out_indices", "stage_names")
    return {name: small(name, value) for name, value in config.items() if name not in dropped}


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return `parameters` of rotary embeddings with sections for small heads."""
    values: dict[str, Any] = {n: _rope(v) if isinstance(v, dict) else v for n, v in parameters.items()}
    if "rope_type" in values:  # some models have a default for heads of 128
        half = int(WIDTH // 8 * float(values.get("partial_rotary_factor", 1)))
        count = len(values.get("mrope_section", "thw"))
        values["mrope_section"] = [half - (count - 1) * (half // count)] + [half // count] * (count - 1)
    return values


_QUERIES = ("key_value", "attention")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Values for None.
_MISSING = {"head_dim": WIDTH // 4, "vocab_size": VOCABULARY, "num_key_value_heads": 4, "num_experts_per_tok": 2}
_MISSING |= {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_token": 2}
# What the rules above get wrong.
_EXCEPTIONS: dict[str, dict[str, Any]] = {name: {"image_size": 2 * IMAGE} for name in ("swin", "donut-swin")}
_SERIES = ("autoformer", "informer", "time_series_transformer")
_EXCEPTIONS |= {name: {"prediction_length": LENGTH, "context_length": LENGTH} for name in _SERIES}
_DETR = {"encoder_in_channels": [128, 256, 512], "decoder_in_channels": [WIDTH] * 3}
_EXCEPTIONS |= {"rt_detr": _DETR, "rt_detr_v2": _DETR, "d_fine": {"decoder_in_channels": [WIDTH] * 3}}
_EXCEPTIONS |= {"layoutlmv3": {"coordinate_size": 10, "shape_size": 12}, "lilt": {"hidden_size": 96}}
_EXCEPTIONS |= {"recurrent_gemma": {"num_hidden_layers": 3}, "mistral4": {"qk_rope_head_dim": 8, "qk_head_dim": 24}}
_EXCEPTIONS |= {"kimi_linear": {"num_experts_per_token": 2}, "xmod": {"default_language": "en_XX"}}
_EXCEPTIONS |= {"bailing_hybrid": {"num_experts_per_token": 2, "num_experts_per_tok": 2}, "cvt": {"depth": [1, 2, 4]}}
_EXCEPTIONS |= {"perceiver": {"d_latents": WIDTH, "num_self_attends_per_block": 2}, "levit": {"patch_size": 16}}
_EXCEPTIONS |= {"mamba2": {"num_heads": 8}, "bamba": {"attn_layer_indices": [1]}}
_EXCEPTIONS |= {
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_d_head": 16},
    "chameleon": {"vocabulary_map": {"<image>": 250}},
}
_EXCEPTIONS |= {"jamba": {"attn_layer_period": 2, "attn_layer_offset": 1}}
_ZAMBA = {"attention_hidden_size": 128, "attention_head_dim": 32, "mamba_headdim": 16, "n_mamba_heads": 8}
_BROS = {"dim_bbox_sinusoid_emb_2d": 16, "dim_bbox_sinusoid_emb_1d": 2, "dim_bbox_projection": 16}
_EXCEPTIONS |= {"zamba2": _ZAMBA, "bros": _BROS}
_EXCEPTIONS |= {"lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}}
_EXCEPTIONS |= {"granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]}}
_EXCEPTIONS |= {"hrm_text": {"num_hidden_layers": 16, "num_layers_per_stack": 2}}
_EXCEPTIONS |= {"reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [8, 16]}}


def small_model(kind: str) -> Any:
    """Return a small, freshly initialised model of type `kind`."""
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = shrink(CONFIG_MAPPING[kind]().to_dict()) | _EXCEPTIONS.get(kind, {})
    given = {name: value for name, value in values.items() if name not in ("architectures", "model_type")}
    return AutoModel.from_config(CONFIG_MAPPING[kind].from_dict(given)).eval()


def _found(config: Any, *names: str) -> Any:
    """Return the first attribute of `names` in `config` or the configurations in it, or None."""
    values = config if isinstance(config, dict) else config.to_dict()
    for name in names:
        if values.get(name) is not None:
            return values[name]
    inner = (_found(value, *names) for value in values.values() if isinstance(value, dict))
    return next((value for value in inner if value is not None), None)


def candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the inputs that `model` may take, the most likely first."""
    found, accepted = partial(_found, model.config), inspect.signature(model.forward).parameters
    last = min(_LAST_TOKEN, found("vocab_size") or _LAST_TOKEN)
    ids = torch.randint(min(_FIRST_TOKEN, last // 2), last, (BATCH, LENGTH))
    channels, size = found("num_channels", "in_channels", "in_chans"), found("image_size", "img_size") or IMAGE
    sides = size if isinstance(size, list | tuple) else (size, size)
    image = torch.randn(BATCH, channels if isinstance(channels, int) else 3, *sides)
    patch, times = found("patch_size") or 8, found("temporal_patch_size") or 1
    patches = torch.randn(BATCH, 16, 3 * times * patch**2) if isinstance(patch, int) else image
    grid = torch.tensor([[1, 4, 4]] * BATCH)
    known = dict.fromkeys(("input_ids", "qformer_input_ids", "decoder_input_ids"), ids)
    known |= dict.fromkeys(("grid_thw", "image_grid_thw"), grid)
    known |= {"visual_feats": torch.randn(BATCH, 4, WIDTH), "visual_pos": torch.rand(BATCH, 4, 4)}
    known |= {"bbox": torch.tensor([10, 10, 20, 20]).expand(BATCH, LENGTH, 4), "task_inputs": torch.ones(BATCH, 77)}
    frames = found("num_frames", "frames_per_clip") or 4
    known |= {"pixel_values": image, "pixel_values_videos": image[:, None].repeat(1, frames, 1, 1, 1)}
    known |= {"hidden_states": patches.flatten(0, 1), "merge_sizes": torch.ones(BATCH, dtype=torch.long)}
    known |= {"spatial_shapes": grid[:, 1:], "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long)}
    needed = [n for n, p in accepted.items() if p.default is p.empty and n in known]
    text = [n for n in ("input_ids", "bbox", "decoder_input_ids", "visual_feats", "visual_pos") if n in accepted]
    if "input_ids" in text or needed:
        yield {n: known[n] for n in text} | {n: known[n] for n in needed if "pixel" not in n}
    for main in [n for n in ("pixel_values", "pixel_values_videos") if n in accepted]:
        names = dict.fromkeys([*text, *needed, main])
        more = [n for n in ("spatial_shapes", "pixel_attention_mask") if n in accepted]
        for first in (known[main], known["pixel_values_videos"], patches.flatten(0, 1)):
            yield {n: known[n] for n in names} | {main: first}
            yield {n: known[n] for n in names if n not in text} | {main: first}
        yield {n: known[n] for n in (*names, *more)} | {main: patches}
    past, lags = found("context_length") or LENGTH, found("lags_sequence") or [0]
    if "past_values" in accepted:
        yield {"past_values": torch.randn(BATCH, past, found("num_input_channels") or 1)}
        past += max(lags)
        series = {"past_values": (past,), "past_observed_mask": (past,), "past_time_features": (past, 0)}
        series |= {"future_values": (LENGTH,), "future_time_features": (LENGTH, 0)}
        yield {name: torch.ones(BATCH, *shape) for name, shape in series.items()}
    bins = found("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_dim") or 80
    frames, long = found("max_length") or 64, 2 * (found("max_source_positions") or 32)
    for main in ("input_features", "input_values", "audio_values", "inputs_embeds", "inputs"):
        for shape in ((frames, bins), (bins, long), (4000,), (1, 4000), (1, 64, bins), (LENGTH, WIDTH)):
            values = {main: torch.randn(BATCH, *shape)}
            values |= {n: known[n] for n in text if n == "decoder_input_ids" or main == "input_features"}
            if "input_features_mask" in accepted:
                yield values | {"input_features_mask": torch.ones(BATCH, max(shape), dtype=torch.long)}
            if main in accepted:
                yield values


def inputs(model: Any) -> dict[str, Any]:
    """Return the first inputs that `model` takes, the same at every call."""
    errors = []
    with torch.no_grad(), torch.random.fork_rng([]):
        torch.manual_seed(0)
        for values in candidates(model):
            try:
                model(**values)
            except Exception as error:  # any refusal: the next candidate may do
                errors.append(f"{', '.join(values)}: {type(error).__name__}: {error}")
            else:
                return values
    raise ValueError(" | ".join(errors) or f"no inputs known for {model.main_input_name}")


def _late(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def reason(model: ZooModel) -> str:
    """Return why a model is of no use, empty after a forward."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        built = model.make()
        if (size := sum(parameter.numel() for parameter in built.parameters())) > MOST_PARAMETERS:
            return f"{size / 1e6:.0f} million parameters"
        with torch.no_grad():
            built(**model.inputs(built))
    except Exception as error:  # whatever a model raises is the reason
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    finally:
        signal.alarm(0)
    return ""


def names() -> list[str]:
    """Return the names of all models: one for each model type of transformers, and those of other packages."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [*(f"{_TRANSFORMERS}{kind}" for kind in MODEL_MAPPING_NAMES), *package_models()]


def named(name: str) -> ZooModel:
    """Return a model by its name."""
    if name.startswith(_TRANSFORMERS):
        return ZooModel(name, partial(small_model, name.removeprefix(_TRANSFORMERS)), inputs)
    return package_models()[name]


_TRANSFORMERS = "transformers: "


def _fixed(names: str, _: Any) -> dict[str, torch.Tensor]:
    """Return an image for "image", "img" or "x=image", and tokens for the others, the same at every call."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        image, tokens = torch.randn(BATCH, 3, IMAGE, IMAGE), torch.randint(_FIRST_TOKEN, _LAST_TOKEN, (BATCH, LENGTH))
        return {name.split("=")[0]: image if "im" in name else tokens for name in names.split()}


@functools.cache
def package_models() -> dict[str, ZooModel]:
    """Return small models of the other packages that are installed."""
    models: dict[str, ZooModel] = {}
    for build in (_timm, _x_transformers):
        try:
            for name, make, inputs_named in build():
                title = f"{build.__name__.strip('_')}: {name}"
                models[title] = ZooModel(title, make, partial(_fixed, inputs_named))
        except ImportError:
            continue
    return models


_Named = Iterator[tuple[str, Callable[[], Any], str]]


def _timm() -> _Named:
    create = importlib.import_module("timm").create_model
    names = "vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 beit_base_patch16_224 eva02_tiny_patch14_224"
    names += " cait_xxs24_224 xcit_nano_12_p16_224 vit_relpos_small_patch16_224 visformer_tiny"
    for name in names.split():
        yield name, partial(create, name, embed_dim=WIDTH, depth=2, num_heads=4, img_size=IMAGE), "x=image"


def _x_transformers() -> _Named:
    package = importlib.import_module("x_transformers")
    options = "rotary_pos_emb use_rmsnorm ff_glu alibi_pos_bias rel_pos_bias attn_qk_norm attn_pre_talking_heads"
    for stack, option in itertools.product(("Decoder", "Encoder"), options.split()):

        def make(stack: str = stack, option: str = option) -> Any:
            layers = getattr(package, stack)(dim=WIDTH, depth=2, heads=4, attn_dim_head=WIDTH // 4, **{option: True})
            return package.TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=LENGTH, attn_layers=layers)

        yield f"{stack}, {option}", make, "x"
