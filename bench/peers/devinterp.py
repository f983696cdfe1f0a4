"""Steps of samplers and the coefficient of a quadratic: ours beside those of the package devinterp.

Gradients and noise are given to both. devinterp and PyTorch are no dependencies:
python -m pip install devinterp==2.0.1 torch==2.13.0
"""

import importlib.metadata
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PEER = "timaeus-research/devinterp"
H, NBETA, GAMMA, SIZE = (3.0, 1.0, 0.2), 50.0, 2.0, 1e-3
POINT, PLACE = (0.1, -0.2, 0.3), (0.4, 0.1, -0.2)


def VERSION() -> str:
    """Version of the installed package."""
    return f"devinterp {importlib.metadata.version('devinterp')}"


def cases(checkout: Path | None = None) -> Iterator[dict[str, Any]]:
    """Differences of one to five steps with the same noise, and of the coefficient of a quadratic."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch
    from devinterp.optim.sgld import SGLD as TheirSGLD
    from devinterp.optim.sgmcmc import SGMCMC
    from devinterp.optim.sgnht import SGNHT as TheirSGNHT

    from icllab.diagnostics import SGLD, SGNHT, RMSpropSGLD
    from icllab.diagnostics.sampling.posteriors import Posterior

    warnings.simplefilter("ignore")
    noise = np.random.default_rng(0).normal(size=(5, 3))

    def their_path(build: Any, momentum: Any = None) -> Any:
        """Five steps from the place; the noise is what torch.normal is made to return."""
        w = torch.nn.Parameter(torch.tensor(POINT, dtype=torch.float64))
        optimizer = build([w])
        w.data.copy_(torch.tensor(PLACE, dtype=torch.float64))
        if momentum is not None:
            optimizer.state[w]["momentum"] = torch.tensor(momentum)
        normal, path = torch.normal, []
        try:
            for row in noise:
                torch.normal = lambda mean, std, row=row, **_: std * torch.tensor(row)
                optimizer.zero_grad()
                (torch.tensor(H, dtype=torch.float64) * w**2).sum().div(2).backward()
                optimizer.step()
                path.append(w.detach().numpy().copy())
        finally:
            torch.normal = normal
        return np.array(path)

    def our_path(sampler: Any, gamma: float, memory: Any) -> Any:
        numbers = (jnp.asarray(value) for value in (NBETA, gamma))
        target = Posterior(lambda w: jnp.sum(jnp.asarray(H) * w**2) / 2, jnp.asarray(POINT), *numbers)
        w, path = jnp.asarray(PLACE), []
        for row in noise:
            slope = target.evaluated(w)[1]
            if isinstance(sampler, SGNHT):  # their friction acts on the gradient of the step too
                slope = (1 - memory[1]) * slope
            w, memory = sampler.advance(target, w, memory, slope, jnp.asarray(SIZE), jnp.asarray(row))
            path.append(np.asarray(w))
        return np.array(path)

    def row(case: str, theirs: str, ours: str, difference: Any, unit: str = "absolute", note: str = "") -> dict:
        tolerance = 1e-6 if unit == "absolute" else 4.0
        rows = {"case": case, "theirs": theirs, "ours": ours, "difference": float(difference), "unit": unit}
        return rows | {"tolerance": tolerance, "note": note}

    options = {"lr": SIZE, "nbeta": NBETA, "localization": GAMMA}
    with jax.enable_x64(True):
        for level in (1.0, 0.5):
            for name, build in (("SGMCMC.sgld", SGMCMC.sgld), ("SGLD", TheirSGLD)):
                theirs = their_path(lambda p, build=build, level=level: build(p, noise_level=level, **options))
                ours = our_path(SGLD(noise_level=level), GAMMA, ())
                yield row(f"5 steps of {name}, noise level {level:g}", name, "SGLD", np.abs(theirs - ours).max())
        theirs = their_path(lambda p: SGMCMC.rmsprop_sgld(p, alpha=0.9, eps=0.2, **options))
        ours = our_path(RMSpropSGLD(decay=0.9, damping=0.2), GAMMA, jnp.zeros(3))
        yield row("5 steps of SGMCMC.rmsprop_sgld", "SGMCMC.rmsprop_sgld", "RMSpropSGLD", np.abs(theirs - ours).max())
        momentum = np.array([0.02, -0.01, 0.03])
        theirs = their_path(lambda p: TheirSGNHT(p, lr=SIZE, diffusion_factor=0.05, nbeta=NBETA), momentum)
        ours = our_path(SGNHT(diffusion=0.05), 0.0, (jnp.asarray(momentum), jnp.asarray(0.05)))
        note = "ours with the gradient times 1 - friction, as theirs; SGMCMC.sgnht leaves the momentum out of the step"
        yield row("5 steps of SGNHT, without a localization", "SGNHT", "SGNHT", np.abs(theirs - ours).max(), note=note)
        yield row(**_quadratic())


def _quadratic() -> dict[str, Any]:
    """The coefficient of a quadratic by ``sample`` and by our chains: standard errors apart."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch
    from datasets import Dataset
    from devinterp.slt.llc import compute_llc
    from devinterp.slt.sampling import sample

    from icllab.diagnostics import SGLD, LocalPosterior, posterior_draws
    from icllab.diagnostics.sampling import convergence

    class Bowl(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3))

        def forward(self, input_ids: Any) -> Any:
            return ((torch.tensor(H) * self.w**2).sum() / 2).expand(len(input_ids), 1)

    torch.set_num_threads(1)
    chains, warm_up, draws = 4, 100, 1000
    rows = Dataset.from_dict({"input_ids": [[0, 0]]}).with_format("torch")
    options = {"lr": SIZE, "n_beta": NBETA, "localization": GAMMA, "device": "cpu", "batch_size": 1}
    options |= {"num_chains": chains, "num_draws": draws, "num_burnin_steps": warm_up}
    result = compute_llc(sample(Bowl(), rows, {}, loss_fn=lambda model, ids: model(ids), **options))
    theirs = NBETA * result["loss_trace"].transpose("chain", "step").values[:, warm_up:].astype(float)
    sampler = SGLD(chains=chains, warm_up=warm_up, draws=draws, step_size=SIZE)
    posterior = LocalPosterior.from_function(
        lambda w: jnp.sum(jnp.asarray(H) * w**2) / 2, jnp.zeros(3), nbeta=NBETA, localization=GAMMA
    )
    run = posterior_draws(posterior, sampler=sampler, key=jax.random.key(0), progress=False)
    (a, a_error), (b, b_error) = (convergence.mean_and_mcse(np.asarray(x, float)) for x in (theirs, NBETA * run.losses))
    note = f"{a:.3f} +- {a_error:.3f} and {b:.3f} +- {b_error:.3f}; compute_llc averages the burn-in too, which is cut"
    distance = abs(a - b) / math.hypot(a_error, b_error)
    names = {"case": "coefficient of a quadratic", "theirs": "sample", "ours": "diagnostics.posterior_draws"}
    return names | {"difference": distance, "unit": "standard errors", "note": note}
