"""PyTorch modules of every layout of tokens and answers, and what is said of those that cannot be asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import diagnostics
from icllab.algorithms import Ridge
from icllab.core.errors import InputError, ResultWarning
from icllab.core.prompt import RegressionPrompt
from icllab.models import FromTorch
from icllab.tasks import ItemLabel, LinearRegression, RepeatedTokens

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=16)
ITEMS = ItemLabel.init(classes=8, labels=4, pairs=3, dim=3, position_dim=12, key=KEY)


def mean_so_far(y):
    return (torch.cumsum(y, -1) - y) / torch.arange(y.shape[-1]).clamp(min=1)


class Plain(nn.Module):
    def forward(self, x, y):
        return mean_so_far(y)


class Interleaved(nn.Module):
    def forward(self, tokens):
        return mean_so_far(tokens[:, 1::2, -1]).repeat_interleave(2, 1)


class Dicts(nn.Module):
    def forward(self, batch):
        return {"weights": batch["x"], "prediction": mean_so_far(batch["y"])}


class Keywords(nn.Module):
    def forward(self, x, *, y):
        return mean_so_far(y), x


class TimeFirst(nn.Module):
    def forward(self, sequence):
        return mean_so_far(sequence[..., -1].T).T[..., None]


class Last(nn.Module):
    def forward(self, x, y):
        return mean_so_far(y)[:, -1]


def both(prompt):
    return torch.cat([prompt.x, prompt.y[..., None]], -1)


def interleaved(p):
    return torch.stack([F.pad(p.x, (0, 1)), F.pad(p.y[..., None], (p.dim, 0))], 2).flatten(1, 2)


@pytest.mark.parametrize(
    ("module", "features", "answers"),
    [
        (Interleaved(), interleaved, lambda a: a[:, 0::2]),
        (Dicts(), lambda p: {"x": p.x, "y": p.y}, lambda a: a["prediction"]),
        (Keywords(), lambda p: ((p.x,), {"y": p.y}), lambda a: a[0]),
        (Keywords(), lambda p: ((p.x,), {"y": p.y}), lambda a: a[0].double()),
        (TimeFirst(), lambda p: both(p).transpose(0, 1), lambda a: a[..., 0].T),
    ],
)
def test_every_layout_has_the_same_losses(module, features, answers):
    options = {"key": KEY, "prompts": 8}
    plain = diagnostics.per_length(Plain(), TASK, **options)
    result = diagnostics.per_length(FromTorch(module, features, answers), TASK, **options)
    np.testing.assert_allclose(result.loss, plain.loss, rtol=1e-5)
    split = diagnostics.PromptSplit(10, fitting=10)
    verdict = diagnostics.identify(
        FromTorch(module, features, answers), {"ridge": Ridge(0.1)}, TASK, key=KEY, prompts=split
    )
    assert not any("gradients" in text for text in verdict.attrs["warnings"])


def test_the_lines_that_a_refusal_shows_are_right():
    with pytest.raises(InputError) as failure:
        diagnostics.per_length(Interleaved(), TASK, key=KEY, prompts=4)
    first, *lines = str(failure.value).split("\n")
    assert first.startswith("module Interleaved: expected an answer to a prompt of x (")
    assert "got TypeError in Interleaved" in first
    assert first.endswith("change its arguments with features= and its value with answers=, such as")
    assert len(lines) == 4
    names = {"models": __import__("icllab").models, "torch": torch, "F": F, "module": Interleaved()}
    predictor = eval(lines[1].strip(), names)
    np.testing.assert_allclose(predictor(TASK.sample(key=KEY)), FromTorch(Plain())(TASK.sample(key=KEY)), rtol=1e-5)
    shapes = []
    names["module"] = nn.Identity()
    names["module"].register_forward_hook(lambda _, inputs, __: shapes.append(inputs[0]))
    with pytest.raises(InputError, match="expected answers"):
        eval(lines[3].strip(), names)(TASK.sample(key=KEY))
    assert shapes[0].shape == (1, 17, 4)
    np.testing.assert_array_equal(shapes[0][0, 1:, -1], TASK.sample(key=KEY).y[:-1])


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        (
            FromTorch(Interleaved(), interleaved),
            r"\(20, 17\), got \(20, 34\); answers=lambda a: a\[:, 0::2\] takes those of every other token",
        ),
        (
            FromTorch(TimeFirst(), lambda p: both(p).transpose(0, 1)),
            r"\(20, 17\), got \(17, 20, 1\); answers=lambda a: a\[..., 0\].T makes them",
        ),
        (
            FromTorch(TimeFirst(), both),
            r"\(20, 17\), got \(20, 17, 1\); answers=lambda a: a\[..., 0\] makes them",
        ),
        (Last(), r"\(20, 17\), got \(20,\); positions='last' declares that it answers the last position alone"),
        (FromTorch(Dicts(), vars), "a tensor of answers, got 'dict with weights, prediction'; answers=lambda"),
        (
            FromTorch(Plain(), positions="last"),
            r"\(4, 1\), got \(4, 17\); answers=lambda a: a\[:, -1:\] takes the last, and positions='every'",
        ),
    ],
)
def test_another_shape_is_refused_with_the_way_out(predictor, message):
    with pytest.raises(InputError, match=rf"^module \w+: expected .*{message}") as failure:
        diagnostics.per_length(predictor, TASK, key=KEY, prompts=4)
    assert "\n" not in str(failure.value)
    assert "batched" not in str(failure.value)


def test_a_network_of_the_last_position_has_what_that_allows():
    losses = [
        diagnostics.per_length(n, TASK, key=KEY, prompts=8).loss for n in (FromTorch(Last(), positions="last"), Plain())
    ]
    assert np.isnan(losses[0][:-1]).all()
    np.testing.assert_allclose(losses[0][-1], losses[1][-1], rtol=1e-5)
    split = diagnostics.PromptSplit(10, fitting=10)
    found = [
        diagnostics.identify(n, {"ridge": Ridge(0.1)}, TASK, key=KEY, prompts=split)
        for n in (FromTorch(Last(), positions="last"), Plain())
    ]
    np.testing.assert_allclose(*(one.fraction_unexplained for one in found), rtol=1e-4)


class OfItems(nn.Module):
    """Logits at the query, of the tokens alone."""

    def forward(self, tokens):
        self.seen = tokens
        return tokens[:, -1, :4]


def test_items_with_labels_are_the_tokens_of_the_prompt():
    module, prompts = OfItems(), ITEMS.sample_many(5, key=KEY)
    result = diagnostics.accuracy(module, ITEMS, key=KEY, prompts=8)
    assert np.isfinite(result.accuracy[-1])
    FromTorch(module, positions="last")(prompts)
    np.testing.assert_array_equal(module.seen, jax.vmap(lambda prompt: prompt.tokens())(prompts))


class Embedded(nn.Module):
    def __init__(self, vocabulary, classes):
        super().__init__()
        self.table = nn.Embedding(vocabulary, classes)

    def forward(self, tokens):
        return self.table(tokens)


def test_another_vocabulary_is_refused():
    task = RepeatedTokens(vocabulary=16, period=13)
    layer = r"Embedding table \(input \(\d+, 25\), weight \(8, 16\)\)"
    small = rf"^module Embedded: .*IndexError in {layer}.*; the tokens reach 15: take a task with the vocabulary"
    with pytest.raises(InputError, match=small):
        diagnostics.per_length(Embedded(8, 16), task, key=KEY, prompts=4)
    with pytest.raises(InputError, match=r"^predictor 'Embedded': prediction: expected 16 classes, got 17"):
        diagnostics.per_length(Embedded(16, 17), task, key=KEY, prompts=4)


class OnCuda(Plain):
    def forward(self, x, y):
        return mean_so_far(y.cuda())


class Ahead(nn.Module):
    """Sees its own target at every fourth position."""

    def forward(self, x, y):
        return torch.where(torch.arange(y.shape[-1]) % 4 == 3, y, mean_so_far(y))


class Dropping(Plain):
    def forward(self, x, y):
        return F.dropout(mean_so_far(y), 0.5, training=True)


class Short(Plain):
    def forward(self, x, y):
        return torch.where(torch.arange(y.shape[-1]) < 12, mean_so_far(y), torch.nan)


def test_bad_modules_are_told_in_a_line():
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"^module OnCuda: .*; without a GPU take module.to\('cpu'\)"):
            diagnostics.per_length(OnCuda(), TASK, key=KEY, prompts=4)
    with pytest.warns(ResultWarning, match=r"'Ahead' looks at its own target .* \(at positions 3, 7, 11, 15\)"):
        diagnostics.per_length(Ahead(), TASK, key=KEY, prompts=4)
    dropout = "'Dropping' gives two answers .*; dropout with training=self.training is off in evaluation mode"
    with pytest.warns(ResultWarning, match=dropout):
        diagnostics.per_length(Dropping(), TASK, key=KEY, prompts=4)
    with pytest.raises(InputError, match=dropout[1:9]):
        diagnostics.require_causal(Dropping(), TASK, key=KEY)
    with pytest.warns(ResultWarning, match="'Short': the loss is not finite at positions 12, 13, 14 and 2 more"):
        diagnostics.per_length(Short(), TASK, key=KEY, prompts=4)
    split = diagnostics.PromptSplit(10, fitting=10)
    with pytest.raises(InputError, match=r"finite answers, got '10 of 10 prompts without, at positions \[16\]'"):
        diagnostics.identify(Short(), {"ridge": Ridge(0.1)}, TASK, key=KEY, prompts=split)


class Placed(nn.Module):
    """A network of tokens or points with a table of seven places."""

    def __init__(self, vocabulary=None):
        super().__init__()
        self.read = nn.Linear(3, 5) if vocabulary is None else nn.Embedding(vocabulary, 5)
        self.places = nn.Embedding(7, 5)

    def forward(self, x, y=None):
        hidden = self.read(x) + self.places(torch.arange(x.shape[1]))
        return hidden if y is None else hidden.sum(-1)


def test_a_network_is_told_by_the_number_of_its_positions():
    most = "it answers at most 7 positions: take shorter prompts"
    with pytest.raises(InputError, match=f"^module Placed: .*IndexError in Embedding places .*; {most}$"):
        FromTorch(Placed())(TASK.sample(key=KEY))
    for tokens, message in ((12, most), (7, "the tokens reach .*: take a task with the vocabulary of the network")):
        with pytest.raises(InputError, match=f"; {message}$"):
            FromTorch(Placed(5))(RepeatedTokens(40, tokens // 2 + 1).sample(key=KEY))


def test_the_mode_of_every_layer_is_kept():
    module = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.5))
    module[0].eval()
    predictor = FromTorch(module, both, lambda a: a[..., 0])
    assert np.isfinite(predictor(TASK.sample(key=KEY))).all()
    assert [layer.training for layer in module.modules()] == [True, False, True]


def test_masks_are_booleans():
    kinds = []
    prompt = TASK.sample(key=KEY)
    masked = RegressionPrompt(prompt.x, prompt.y, jnp.ones(prompt.positions, bool))
    FromTorch(Plain(), lambda p: (kinds.append(p.mask.dtype), (p.x, p.y))[1])(masked)
    assert kinds == [torch.bool]
