"""The page *Coming from other libraries* says of a name what was measured of it, and nothing of others."""

import importlib.util
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests import language_models

from icllab import models
from icllab.core.prompt import TokenPrompt
from icllab.models import pretrained

_spec = importlib.util.spec_from_file_location("make_peers", Path(__file__).parents[3] / "docs" / "make_peers.py")
make_peers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_peers)


def row(theirs, difference, **fields):
    whole = {"case": f"case of {theirs}", "theirs": theirs, "ours": "algorithms.Ridge", "difference": difference}
    return whole | {"unit": "absolute", "tolerance": 1e-6, "note": ""} | fields


ROWS = [
    row("models.py: Ridge(0.1)", 1e-9),
    row('get_model("ridge", lam=0.25)', 2e-9),
    row('get_model("mmse")', 4.7, unit="standard errors", tolerance=3.0, note="theirs | has no limit"),
]
RECORD = {"peer": "a/b", "version": "1.2", "clone": True, "date": "2026-01-02", "package": "0.3.0", "rows": ROWS}
TEMPLATE = """# Title

<!-- summary -->

## One

| there | here |
|---|---|
| `Ridge`, first | `algorithms.Ridge` |
| `get_model("mmse")` | `algorithms.bayes_optimal` |
| `get_model("other")` | `algorithms.LeastSquares` |

<!-- measured: one none -->

### Two

| there | here |
|---|---|
| `Ridge` | `algorithms.Ridge` |
"""


def test_a_name_has_what_was_measured_of_it_in_its_own_section():
    one, two = make_peers.page(TEMPLATE, {"one": RECORD}).split("### Two")
    assert "| `Ridge`, first | `algorithms.Ridge` | equal in 1 of 1, 1e-09 |" in one
    assert "| equal in 0 of 1, 4.7 standard errors: theirs \\| has no limit |" in one
    assert '| `get_model("other")` | `algorithms.LeastSquares` | not compared |' in one
    assert "| `Ridge` | `algorithms.Ridge` | not compared |" in two
    assert "equal in" not in two


def test_the_table_says_what_is_not_equal_and_why():
    page = make_peers.page(TEMPLATE, {"one": RECORD})
    assert "| `a/b` | 1.2 | 3 | 2 | 1 |" in page
    assert "4.7 standard errors | 3 | **not equal**: theirs \\| has no limit |" in page
    assert "by `bench/peers.py --only one --checkout one=DIR`" in page


def test_a_peer_that_no_section_names_has_a_section_of_its_own():
    page = make_peers.page(TEMPLATE, {"more": RECORD | {"peer": "package", "clone": False}})
    assert page.count("| not compared |") == 4
    assert "## package\n\n*Measured*: `package`, 1.2" in page
    assert "by `bench/peers.py --only more`." in page


def hook_rows():
    """Rows of the table of hooks of TransformerLens: both cells."""
    text = (Path(__file__).parents[3] / "docs" / "peers" / "template.md").read_text("utf-8")
    table = text.split("| hook there | activation here |\n|---|---|\n")[1].split("\n\n")[0]
    return [row.strip("| ").split(" | ") for row in table.splitlines()]


def hooks():
    """Hook -> the activations beside it, of those that are kept."""
    codes = lambda cell: re.findall(r"`([^`]+)`", cell)  # noqa: E731
    return {codes(there)[0]: codes(here) for there, here in hook_rows() if not here.startswith("not kept")}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = language_models.write_folder(tmp_path_factory.mktemp("model"), language_models.TIED)
    return pretrained.load(folder).trace(TokenPrompt(jnp.asarray([3, 1, 4, 1, 5])))


def test_every_activation_of_the_table_of_hooks_is_in_a_trace(trace):
    names = {code for _, here in hook_rows() for code in re.findall(r"`(embedding|readout|block[\w.]+)`", here)}
    assert len(names) > 15
    assert names <= set(trace.activations)
    # And every activation of a block stands in the table.
    assert {name for name in trace.activations if name.startswith("block1")} <= names


@pytest.mark.slow
def test_the_table_of_hooks_pairs_equal_numbers():
    torch, lens = pytest.importorskip("torch"), pytest.importorskip("transformer_lens")
    if not hasattr(lens, "HookedTransformer"):
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    sizes = {"n_layers": 2, "d_model": 16, "d_head": 8, "n_heads": 2, "d_vocab": 11, "n_ctx": 6, "d_mlp": 20}
    options = {"act_fn": "gelu_new", "normalization_type": "RMS", "positional_embedding_type": "rotary"}
    config = lens.HookedTransformerConfig(**sizes, **options, rotary_dim=4, device="cpu", use_attn_result=True)
    module = lens.HookedTransformer(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = [3, 1, 4, 1, 5]
    cache = module.run_with_cache(torch.tensor([ids]))[1]
    model = models.from_torch(module)
    activations = model.trace(TokenPrompt(jnp.asarray([*ids, 0]))).activations
    turned = {"blocks.1.attn.hook_q", "blocks.1.attn.hook_k"}  # these positions are rotary
    for hook, names in hooks().items():
        ours, theirs = np.asarray(activations[names[-1 if hook in turned else 0]]), cache[hook][0].detach().numpy()
        seen = np.isfinite(theirs) & (theirs > -1e4)  # scores are masked there
        np.testing.assert_allclose(ours[seen], theirs[seen], atol=1e-5, err_msg=hook)
    result = np.einsum("thd,hdw->thw", activations["block1.attention.heads"], model.blocks[1].attention.output)
    np.testing.assert_allclose(result, cache["blocks.1.attn.hook_result"][0].detach(), atol=1e-5)
    read = cache["ln_final.hook_normalized"][0].detach() * module.ln_final.w.detach()
    np.testing.assert_allclose(activations["readout"], read, atol=1e-5)
