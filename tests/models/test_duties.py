"""What any attention must do: each property on a model that has it, and on one that lacks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import attncheck as ac
from attncheck.models.duties.registry import NAMES
from attncheck.models.result import ModelInspection
from tests.refusals import refused

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is

from .torch_attention import HEADS, TOKENS, WIDTH, Attention, Block, Cache, Model  # noqa: E402  # only where torch is

LENGTH = 8
IDS = torch.arange(2 * LENGTH).reshape(2, LENGTH)


def attention(method: str, function: Callable[..., Any]) -> Callable[[], nn.Module]:
    """Return a function that makes models with another method of attention."""
    return lambda: Model(type("Other", (Attention,), {method: function}))


def block(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    """Return a function that makes models whose blocks have another forward pass."""
    return lambda: Model(block=type("Other", (Block,), {"forward": function}))


def changed(change: Callable[[Any], None]) -> Callable[[], nn.Module]:
    """Return a function that makes models and changes them."""

    def make() -> nn.Module:
        model = Model()
        change(model)
        return model

    return make


def residual(function: Callable[[Any, Any], Any]) -> Callable[[], nn.Module]:
    """Return a function that makes models whose blocks combine inputs and updates otherwise."""
    return block(lambda self, x: function(x, self.fc(self.attn(self.ln_1(x)))))


def normalised_residual(self: Any, x: Any) -> Any:
    return self.ln_1(x) + self.fc(self.attn(self.ln_1(x)))


def norm_after(self: Any, x: Any) -> Any:
    return self.ln_1(x + self.fc(self.attn(x)))


def second_softmax(self: Any, scores: Any) -> Any:
    return self.masked(scores).softmax(-1).softmax(-1)


def capped(self: Any, scores: Any) -> Any:
    return (50 * torch.tanh(self.masked(scores) / 50)).softmax(-1)


def shifted(self: Any, scores: Any) -> Any:
    """Drop the last column of the weights, where the first one belongs to a sink."""
    sink = torch.zeros_like(scores[..., :1])
    return torch.cat([sink, self.masked(scores)], -1).softmax(-1)[..., :-1]


def bidirectional(self: Any, scores: Any) -> Any:
    return scores.softmax(-1)


def dropped(self: Any, scores: Any) -> Any:
    return self.masked(nn.functional.dropout(scores, 0.5, self.training)).softmax(-1)


def projected(index: int, function: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    """Return a function that makes models with other queries (0) or values (2)."""

    def changed(self: Any, x: Any) -> list[Any]:
        parts = Attention.projected(self, x)
        parts[index] = function(parts[index])
        return parts

    return attention("projected", changed)


def normalised(vectors: Any) -> Any:
    return nn.functional.normalize(vectors, dim=-1)


def in_last_block(change: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that makes models whose last block is of another model."""

    def make() -> nn.Module:
        model: Any = Model()
        model.h[-1] = cast("Any", change()).h[-1]
        return model

    return make


def half_of_heads(self: Any, x: Any) -> Any:
    return [a[:, :1].expand(-1, HEADS, -1, -1) for a in Attention.projected(self, x)]


def top_left(self: Any, scores: Any) -> Any:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


def embedding(
    function: Callable[[Any, Any], Any], attention: Callable[[], nn.Module] = Attention, **parts: Callable[[], Any]
) -> Callable[[], nn.Module]:
    """Return a function that makes models with further parts, and other embeddings: of a model and tokens."""

    def make() -> nn.Module:
        model = type("Other", (Model,), {"embedded": function})(attention)
        for name, part in parts.items():
            setattr(model, name, part())
        return model

    return make


#: Attention that sees all positions.
BOTH_WAYS = type("Other", (Attention,), {"weights": bidirectional})


def table() -> Any:
    """Return vectors of positions."""
    return nn.Parameter(torch.randn(LENGTH, WIDTH))


def zeros(*shape: int) -> Any:
    return nn.Parameter(torch.zeros(shape))


def adapted(self: Any, ids: Any) -> Any:
    """Add a low-rank adapter, with factors that both start at 0."""
    x = self.embed(ids)
    return x + x @ self.a.T @ self.b.T


class Buffered(Model):
    """A buffer multiplies the embeddings."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.register_buffer("inv_freq", value)

    def embedded(self, ids: Any) -> Any:
        return self.embed(ids) * (1 + self.inv_freq.sin())


class Written(Buffered):
    """A call writes a buffer, which does not change the outputs."""

    def embedded(self, ids: Any) -> Any:
        x = self.embed(ids)
        self.inv_freq += x.detach().mean((0, 1))
        return x


def with_dropout(attention: Callable[[], nn.Module] = Attention, used: bool = True) -> Callable[[], nn.Module]:
    """Return a function that makes models with dropout of embeddings, which may be forgotten."""
    return embedding(
        lambda self, ids: self.dropout(self.embed(ids)) if used else self.embed(ids),
        attention,
        dropout=lambda: nn.Dropout(0.1),
    )


class Cached(Model):
    """A model that returns caches; without `right`, later keys are visible in calls of several tokens."""

    def __init__(self, right: bool = True) -> None:
        super().__init__(Attention if right else type("Other", (Attention,), {"masked": top_left}))

    def forward(self, ids: Any, cache: Any = None) -> Any:
        caches = cache or [Cache() for _ in self.h]
        x = self.embed(ids)
        for block, stored in zip(self.h, caches, strict=True):
            x = block(x, stored)
        return self.head(x), caches


class Prefilled(Attention):
    """Attention that hides later positions only without a cache."""

    def forward(self, x: Any, cache: Any = None) -> Any:
        self.hides = cache is None
        return super().forward(x, cache)

    def masked(self, scores: Any) -> Any:
        return super().masked(scores) if self.hides else scores


class Filled(Block):
    """A block that fills a cache."""

    def forward(self, x: Any, cache: Any = None) -> Any:
        return super().forward(x, Cache())


class Padded(Model):
    """A model that takes a mask of padding, and may ignore it."""

    used, share, rows = True, 1.0, slice(None)

    def forward(self, ids: Any, attention_mask: Any = None) -> Any:
        x = self.embed(ids)
        if attention_mask is not None and self.used:
            x = x * attention_mask[self.rows, :, None]
        return self.head(x + self.share * x.mean(1, keepdim=True))


class Unpadded(Padded):
    used = False


class Encoder(Padded):
    """A fused encoder, which packs real tokens in nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), 1)

    def forward(self, ids: Any, attention_mask: Any = None) -> Any:
        real = ids >= 0 if attention_mask is None else attention_mask.bool()
        return self.head(self.encoder(self.embed(ids), src_key_padding_mask=~real))


class PaddedAsFirst(Padded):
    """All sequences are padded as the first one."""

    rows = slice(1)


class Pairs(Model):
    """Outputs are products of all pairs of sequences."""

    def forward(self, ids: Any) -> Any:
        vectors = super().forward(ids).mean(1)
        return vectors @ vectors.T


class Centred(Model):
    """As many classes as sequences, with outputs centred over the batch."""

    def forward(self, ids: Any) -> Any:
        outputs = super().forward(ids)[:, -1, : len(IDS)]
        return outputs - outputs.mean(0)


class PooledAtEnd(Padded):
    """Outputs are those of the last token."""

    def forward(self, ids: Any, attention_mask: Any = None) -> Any:
        return super().forward(ids, attention_mask)[:, -1]


class Pooled(Unpadded):
    """A classifier: outputs are means over positions, padded ones included."""

    def forward(self, ids: Any, attention_mask: Any = None) -> Any:
        return super().forward(ids, attention_mask).mean(1)


class Closed(Pooled):
    """A classifier whose outputs are 0."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)


class Apart(Unpadded):
    """Outputs do not depend on other positions."""

    share = 0.0


def copy_embedding(model: Any) -> None:
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())


def tie_embedding(model: Any) -> None:
    model.head.weight = model.embed.weight


def close_attention(model: Any) -> None:
    for block in model.h:
        nn.init.zeros_(block.attn.o.weight)


def close_head(model: Any) -> None:
    nn.init.zeros_(model.head.weight)


HOLDS, WRONG, ASKS, UNEXAMINED = "holds", "violated: wrong", "violated: asks", "not examined"
#: What holds for the model, and cannot be examined.
OUTCOMES = {duty: UNEXAMINED if duty in ("dropout", "permutation", "pad_tokens", "cache") else HOLDS for duty in NAMES}
UNSEEN = dict.fromkeys(("causality", "sequences", "residual", "precision"), UNEXAMINED)
ONE_VECTOR = dict.fromkeys(("causality", "precision"), UNEXAMINED)
MEANS = dict.fromkeys(("causality", "residual", "norms", "reach"), UNEXAMINED)
#: Models, and the outcomes that differ.
ROWS: dict[str, tuple[Callable[[], Any], dict[str, str]]] = {
    "right": (Model, {}),
    "second softmax": (attention("weights", second_softmax), {"causality": WRONG, "permutation": HOLDS}),
    "cap after the mask": (attention("weights", capped), {"causality": WRONG, "permutation": HOLDS}),
    "shifted sink": (attention("weights", shifted), {"causality": WRONG, "permutation": HOLDS}),
    "filled cache": (lambda: Model(Prefilled, Filled), {"causality": WRONG, "permutation": ASKS}),
    "positions from the end": (
        embedding(lambda self, ids: self.embed(ids) + self.table[-ids.shape[1] :], table=table),
        {"prefix": ASKS},
    ),
    "positions": (
        embedding(lambda self, ids: self.embed(ids) + self.table[: ids.shape[1]], BOTH_WAYS, table=table),
        {"causality": UNEXAMINED, "permutation": HOLDS},
    ),
    "two tables": (  # the second has tokens of later positions
        embedding(
            lambda self, ids: self.embed(ids) + self.second(ids.flip(1)), second=lambda: nn.Embedding(TOKENS, WIDTH)
        ),
        {"causality": UNEXAMINED, "sequences": UNEXAMINED, "precision": UNEXAMINED},
    ),
    "closed attention": (changed(close_attention), {"causality": UNEXAMINED}),
    "name like positions": (
        embedding(lambda self, ids: self.pos_ffn(self.embed(ids)), BOTH_WAYS, pos_ffn=lambda: nn.Linear(WIDTH, WIDTH)),
        {"causality": UNEXAMINED, "permutation": ASKS},
    ),
    "along the batch": (
        embedding(lambda self, ids: self.embed(ids) + self.table[: len(ids), None], BOTH_WAYS, table=table),
        {"causality": UNEXAMINED, "sequences": ASKS, "permutation": ASKS},
    ),
    "closed head": (changed(close_head), {"causality": UNEXAMINED, "sequences": UNEXAMINED}),
    "product and residual": (residual(lambda x, y: x * (1 + y)), {"reach": UNEXAMINED}),
    "product": (residual(lambda x, y: x * y), {"residual": ASKS, "reach": UNEXAMINED}),
    "twice the input": (residual(lambda x, y: x + x + y), {"residual": ASKS, "reach": UNEXAMINED}),
    "normalised input": (block(normalised_residual), {"residual": ASKS, "reach": UNEXAMINED}),
    "norm after": (block(norm_after), {"residual": UNEXAMINED, "reach": UNEXAMINED}),
    "product in the last block": (in_last_block(residual(lambda x, y: x * y)), {"residual": ASKS, "reach": UNEXAMINED}),
    "normalised values": (projected(2, normalised), {"norms": ASKS}),
    "normalised queries": (in_last_block(projected(0, normalised)), {"norms": ASKS}),
    "rolled values": (projected(2, lambda values: values.roll(1, 0)), {"sequences": ASKS}),
    "block without a norm": (changed(lambda model: setattr(model.h[-1], "ln_1", nn.Identity())), {"norms": ASKS}),
    "pairs of sequences": (Pairs, ONE_VECTOR | {"sequences": UNEXAMINED}),
    "centred classes": (Centred, ONE_VECTOR | {"sequences": ASKS, "reach": ASKS}),
    "dropout": (with_dropout(), {"dropout": HOLDS}),
    "forgotten dropout": (with_dropout(used=False), {"dropout": ASKS}),
    "dropout of scores": (with_dropout(type("Other", (Attention,), {"weights": dropped})), {"dropout": ASKS}),
    "dropout of scores by a function": (attention("weights", dropped), {"dropout": ASKS}),
    "closed adapter": (embedding(adapted, a=lambda: zeros(4, WIDTH), b=lambda: zeros(WIDTH, 4)), {"reach": WRONG}),
    "half of the heads": (attention("projected", half_of_heads), {"reach": ASKS}),
    "unreached expert": (
        embedding(lambda self, ids: self.embed(ids) + 0 * self.expert(ids), expert=lambda: nn.Embedding(TOKENS, WIDTH)),
        {"reach": UNEXAMINED},
    ),
    "listed block": (
        embedding(lambda self, ids: self.more[0](self.embed(ids)), more=lambda: [Block(Attention())]),
        {"registration": WRONG, "precision": UNEXAMINED},
    ),
    "tied embedding": (changed(tie_embedding), {}),
    "copied embedding": (changed(copy_embedding), {"state": ASKS}),
    "ones": (lambda: Buffered(torch.ones(WIDTH)), {}),
    "large whole number": (lambda: Buffered(torch.tensor(torch.iinfo(torch.int64).max)), {}),
    "zeros": (lambda: Buffered(torch.zeros(WIDTH)), {"state": ASKS}),
    "random buffer": (lambda: Buffered(torch.randn(WIDTH)), {"state": ASKS}),
    "written buffer": (lambda: Written(torch.zeros(WIDTH)), {}),
    "uninitialised buffer": (lambda: Buffered(torch.empty(WIDTH)), {"state": WRONG} | UNSEEN),
    "padding": (Padded, MEANS | {"permutation": ASKS, "pad_tokens": HOLDS}),
    "padding of the first": (PaddedAsFirst, MEANS | dict.fromkeys(("permutation", "pad_tokens"), ASKS)),
    "padding of an encoder": (
        Encoder,
        dict.fromkeys(("causality", "prefix", "residual", "reach"), UNEXAMINED)
        | {"permutation": ASKS, "dropout": HOLDS, "pad_tokens": HOLDS},
    ),
    "ignored padding": (Unpadded, MEANS | {"permutation": ASKS, "pad_tokens": ASKS}),
    "mean over padding": (Pooled, MEANS | {"precision": UNEXAMINED, "pad_tokens": ASKS}),
    "mean over padding, closed head": (
        Closed,
        MEANS | dict.fromkeys(("precision", "pad_tokens", "sequences"), UNEXAMINED),
    ),
    "last token": (PooledAtEnd, MEANS | {"precision": UNEXAMINED, "pad_tokens": HOLDS}),
    "no other positions": (Apart, MEANS),
    "cache": (Cached, {"cache": HOLDS}),
    "cache with a wrong mask": (lambda: Cached(False), {"cache": ASKS}),
    "cancellation": (embedding(lambda self, ids: (self.embed(ids) + 1e3) - 1e3), {"precision": ASKS}),
}


def inspected(make: Callable[[], Any]) -> ModelInspection:
    return ac.inspect(make, inputs={"ids": IDS}, draws=2)


@pytest.mark.parametrize("name", ROWS)
def test_properties(name: str) -> None:
    make, outcomes = ROWS[name]
    results = {}
    for result in inspected(make).duties:
        levels = {note.level for note in result.notes}
        results[result.name] = ": ".join([result.outcome, *levels])
    prefix = {"prefix": UNEXAMINED} if "causality" in outcomes else {}  # causal models only
    assert results == OUTCOMES | prefix | outcomes


def test_arguments_may_be_masks_of_booleans() -> None:
    class Kept(Model):
        def forward(self, ids: Any, keep: Any = None) -> Any:
            return super().forward(ids) * keep[..., None]

    inspection = ac.inspect(Kept, inputs={"ids": IDS, "keep": torch.ones_like(IDS, dtype=torch.bool)}, draws=2)
    assert {result.name: result.outcome for result in inspection.duties} == OUTCOMES


@pytest.mark.parametrize(("hides", "where"), [(False, "visible in more.self_attn"), (True, "hidden in attention")])
def test_padding_that_changes_outputs_is_located(hides: bool, where: str) -> None:
    class Mean(Encoder):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True)

        def forward(self, ids: Any, attention_mask: Any = None) -> Any:
            padded = ids < 0 if attention_mask is None else ~attention_mask.bool()
            x = self.encoder(self.embed(ids), src_key_padding_mask=padded)
            x = self.more(x, src_key_padding_mask=padded if hides else None)
            return self.head(x + x.mean(1, keepdim=True))

    assert where in str(inspected(Mean))


def test_a_decoder_is_examined_on_its_own_tokens() -> None:
    class Decoder(Model):
        def forward(self, ids: Any, targets: Any = None) -> Any:
            return super().forward(targets) + self.head(self.embed(ids).mean(1, keepdim=True))

    inspection = ac.inspect(Decoder, inputs={"ids": IDS[:, :-2], "targets": IDS}, draws=2)
    assert {"causality", "sequences"} <= {result.name for result in inspection.duties if result.outcome == HOLDS}


def test_every_property_has_rows_for_both_outcomes() -> None:
    for duty in NAMES:
        outcomes = {(OUTCOMES | row).get(duty, "").partition(":")[0] for _, row in ROWS.values()}
        assert {HOLDS, "violated"} <= outcomes, duty


def test_a_model_is_unchanged() -> None:
    models = []

    def make() -> nn.Module:
        models.append(with_dropout()())
        return models[-1]

    ac.inspect(make, inputs={"ids": IDS}, draws=1, seed=3)
    torch.manual_seed(3)
    new = with_dropout()()
    for one, other in zip(models[1].parameters(), new.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not models[1].training
    assert torch.backends.mha.get_fastpath_enabled()


# Expectations -------------------------------------------------------------------------------------


def test_a_property_that_holds_or_is_not_examined() -> None:
    inspection = inspected(Model)
    inspection.require("causality", state=True)
    holds = "registration, state, causality, prefix, sequences, residual, norms, reach, precision"
    assert f"holds: {holds}" in str(inspection)
    assert inspection.to_dict()["duties"]["causality"] == HOLDS
    assert inspection.unmet("cache") == ["cache: not examined: no argument is a cache"]
    assert "not examined: dropout (nothing is dropped in training); " in str(inspection)
    refused(lambda: inspection.require("causality=maybe"), "'causality=maybe': is neither true nor false; write cau")


def test_a_violation_that_is_meant() -> None:
    inspection = inspected(attention("weights", bidirectional))
    assert "if this is meant: the outputs do not depend on the order" in inspection.verdict
    assert "if this is meant" not in inspection.expecting("permutation=false").verdict
    assert inspection.unmet("permutation=false") == []
    with pytest.raises(AssertionError, match="permutation: violated: the outputs do not depend on the order"):
        inspection.require("permutation")
