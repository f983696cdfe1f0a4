"""Two-layer item-label networks, tested as they train."""

from icllab.claims.induction import _networks
from icllab.core.grid import tabulated

VERSION = 1


def measure(point, *, key, given=False):
    """Test curves of every seed. ``given``: both attention patterns are clamped, and the readout alone is learned."""
    sizes = {"labels": point.label_count, "pairs": point.pairs, "dim": point.dim, "position_dim": point.position_dim}
    how = {"steps": point.step, "rates": [point.learning_rate], "batch": point.batch}

    def curves(seed):
        begin = _networks.start(seed, key=key, **sizes)
        network = _networks.patterns_given(begin.network) if given else begin.network
        run = _networks.trained(begin.task, network, key=begin.of_prompts, **how)
        asked = {"key": begin.of_tests, "prompts": point.prompts, "progress": True}
        found = _networks.measured(run, begin.task.in_context(), **asked)
        return {name: (("step",), values[0]) for name, values in found.items()}

    return tabulated(curves, seed=point.seed)
