"""The lines of the docs that put a model on several devices, on eight virtual ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("safetensors")

PAGE = (Path(__file__).parents[3] / "docs" / "families.md").read_text()
SCRIPT = """
import jax, numpy as np
from icllab.models import BlockOptions, Tokens, Transformer

block = BlockOptions(heads=8, mlp=(32,), norm="pre", norm_kind="rms", gated=True, nonlinearity="silu", mlp_bias=False)
model = Transformer(Tokens(13), dim=13, width=16, layers=2, block=block, positions="rotary", key=jax.random.key(0))
ids = np.array([3, 1, 4, 1, 5])
alone = model.logits(ids)
{lines}
query = model.blocks[0].attention.query
assert len(query.sharding.device_set) == 8
assert query.addressable_shards[0].data.shape == (16, 1, 2)
assert model.blocks[1].mlp.layers[1].weight.addressable_shards[0].data.shape == (4, 16)
np.testing.assert_allclose(model.logits(ids), alone, rtol=0, atol=1e-5)
"""


@pytest.mark.slow
def test_the_lines_of_the_page_divide_a_model_among_eight_devices():
    (lines,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SCRIPT.replace("{lines}", lines)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
