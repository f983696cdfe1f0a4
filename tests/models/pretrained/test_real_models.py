"""Real models, against numbers that others measured; `make models` brings them."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from token_transformers import require_written

from icllab.core.prompt import TokenPrompt
from icllab.models import pretrained
from icllab.models.networks.parameters import parameter_count
from icllab.models.pretrained.language_model import LanguageModel

MODELS = Path(__file__).parents[3] / "models"
pytestmark = pytest.mark.slow


def opened(name):
    if not (MODELS / name).is_dir():
        pytest.skip(f"needs models/{name}, which `make models` brings")
    pytest.importorskip("gguf")
    return pretrained.load(MODELS / name)


def repeated(model, period, prompts):
    """Nats of random tokens and of their repetition, and scores [block, head] of previous and induction heads."""
    rng, nats, previous, induction = np.random.default_rng(0), [], [], []
    size = model.embedding.arrangement.vocabulary

    @jax.jit
    def measured(ids):
        trace = model.trace(TokenPrompt(jnp.append(ids, 0)))
        patterns = jnp.stack([trace.activations[f"block{i}.attention.pattern"] for i in range(len(model.blocks))])
        diagonals = [jnp.diagonal(patterns, -shift, 2, 3) for shift in (1, period - 1)]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(trace.prediction)[:-1], ids[1:, None], 1)[:, 0]
        return -chosen, jnp.mean(diagonals[0], -1), jnp.mean(diagonals[1][..., 1:], -1)

    for _ in range(prompts):
        half = rng.integers(4, size, period)
        losses, *scores = measured(jnp.asarray(np.tile(half, 2), jnp.int32))
        nats.append([np.mean(losses[: period - 1]), np.mean(losses[period:])])
        previous.append(scores[0])
        induction.append(scores[1])
    return np.mean(nats, 0), np.mean(previous, 0), np.mean(induction, 0)


def test_glassllm_has_previous_token_heads_and_no_induction():
    model = opened("glassllm-en")
    assert parameter_count(model) == 852_608
    nats, previous, induction = repeated(model, 60, 64)
    np.testing.assert_allclose(nats, [10.92, 11.01], atol=0.15)
    assert np.unravel_index(previous.argmax(), previous.shape) == (1, 0)
    assert previous.max() == pytest.approx(0.37, abs=0.03)
    assert induction.max() < 0.05
    ids = pretrained.tokenizer(MODELS / "glassllm-en").encode("the same text").ids
    assert pretrained.tokenizer(MODELS / "glassllm-en").decode(ids) == "the same text"


def test_smollm2_has_induction_heads():
    model = opened("smollm2-135m")
    assert parameter_count(model) == 134_515_008
    nats, _, induction = repeated(model, 64, 8)
    np.testing.assert_allclose(nats, [14.1, 2.5], atol=0.3)  # 13.7 and 1.5 on prompts that others drew
    assert np.unravel_index(induction.argmax(), induction.shape) == (18, 6)
    assert induction[18, 6] == pytest.approx(0.9, abs=0.04)
    text = "The capital of France is Paris. 2 + 2 = 4."
    tokenizer = pretrained.tokenizer(MODELS / "smollm2-135m")
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    likely = int(np.argmax(model.logits(tokenizer.encode("The capital of France is").ids)[-1]))
    assert tokenizer.decode([likely]) == " Paris"


def test_gemma_3_is_what_transformers_reads():
    """The file of Gemma 3 270M, which ``bench/fetch_models.py --only gemma`` brings, in parts of the same numbers."""
    file = MODELS / "gemma" / "model.gguf"
    if not file.is_file():
        pytest.skip("needs models/gemma, which `bench/fetch_models.py --only gemma` brings under the Gemma terms")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("accelerate")  # without which transformers reads no GGUF file
    model, ids = opened("gemma"), np.random.default_rng(0).integers(4, 262_144, 24)
    assert [block.attention.window for block in model.blocks] == [512, 512, 512, 512, 512, None] * 3
    peer = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    with torch.no_grad():
        theirs = peer(torch.tensor(ids)[None], output_hidden_states=True)
    hidden = [state[0].numpy() for state in theirs.hidden_states]
    result = pretrained.verify(model, ids, theirs.logits[0].numpy(), hidden=hidden, tolerance=2e-5)
    assert result.attrs["parts_at"] == "", result.difference.to_series().to_string()


def test_smollm2_writes_what_transformers_writes():
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    lm = LanguageModel(opened("smollm2-135m"), pretrained.tokenizer(MODELS / "smollm2-135m"))
    texts = ["The capital of France is", "def add(a, b):\n", "Once upon a time there was a small house"]
    require_written(lm.model, in_transformers(lm.model), [lm.tokens(text) for text in texts], tokens=48, at_least=40)
    assert lm.generate(texts[0], 4).startswith(" Paris")


def in_transformers(model):
    """The same weights in transformers."""
    folder = str(MODELS.parent / "bench")
    spec = importlib.util.spec_from_file_location("bench_of_language_models", f"{folder}/language_models.py")
    bench = importlib.util.module_from_spec(spec)
    sys.path.append(folder)  # where it finds the module of the machine
    try:
        spec.loader.exec_module(bench)
    finally:
        sys.path.remove(folder)
    return bench.llama(model)
