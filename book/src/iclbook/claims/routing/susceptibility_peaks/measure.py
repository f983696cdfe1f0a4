"""Posteriors near the points of a flow, by quadrature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.diagnostics import LocalPosterior, Quadrature, effective_dimension, susceptibility
from icllab.diagnostics.curves.flow_fits import landscape_loss
from icllab.theory import induction_landscape

VERSION = 1


class Landscape(eqx.Module):
    """The loss of the reduced model, with a share of labels outside the context."""

    share: jax.Array
    pairs: int = eqx.field(static=True)
    labels: int = eqx.field(static=True)

    def __call__(self, w):
        """Loss in nats; a label outside the context has logit 0, the right one xi z."""
        return landscape_loss(w, self.pairs, self.labels) + self.share * w[2] * attention(w, self.pairs)


def attention(w, pairs):
    """z, from the query to the right label."""
    y = jax.nn.sigmoid(w[0] - float(np.log(pairs)))
    right = jnp.exp(w[1] * y)
    return right / (right + 2 * pairs)


def measure(point, *, key, formed=0.0, tighter=1.0, squared=False, behind=0.0):
    """One cell: curves along the flow, which starts with both attentions ``formed``; ``tighter``: times gamma.

    ``squared``: the squared loss in place of susceptibilities. ``behind``: how much later posteriors are noted.
    """
    times, gamma = np.asarray(point.time, float), tighter * point.nbeta / point.reach
    sizes = {"pairs": point.pairs, "labels": point.labels}
    flow = induction_landscape.flow((formed, formed, 0.0), time=times[-1] + 1, **sizes)
    path, felt = (
        np.stack([np.interp(at, flow.time, row) for row in flow.parameters.T], axis=1)
        for at in (times, np.maximum(times - behind, 0))
    )
    plain, tilt = (Landscape(jnp.asarray(share), **sizes) for share in (0.0, 1.0))
    observables = {"loss": plain, "attention": eqx.Partial(attention, pairs=point.pairs)}
    route = Quadrature(points=point.points, reach=point.span, scale=point.span * gamma**-0.5)
    tilts = {"tilted": {"outside": tilt}, "observables": observables}
    posteriors = [
        LocalPosterior.from_function(plain, jnp.asarray(w), nbeta=point.nbeta, localization=gamma) for w in felt
    ]
    responses = [
        susceptibility(posterior, **tilts, route=route, key=key).sel(observable=list(point.observable))
        for posterior in posteriors
    ]
    dimensions = [effective_dimension(plain, jnp.asarray(w), resolution=point.resolution, key=key).value for w in path]
    axes, losses = ("time", "observable"), induction_landscape.loss(*path.T, **sizes)
    susceptibilities = np.stack([response["susceptibility"].values[:, 0] for response in responses])
    return {
        "label_loss": (("time",), losses),
        "susceptibility": (axes, np.stack([losses**2] * 2, axis=1) if squared else susceptibilities),
        "susceptibility_error": (
            axes,
            np.stack([response["susceptibility_error"].values[:, 0] for response in responses]),
        ),
        "posterior_loss": (
            ("time",),
            np.array([float(response["mean"].sel(observable="loss")) for response in responses]),
        ),
        "effective_dimension": (("time",), np.array(dimensions)),
        "sampler_warnings": ((), sum(bool(response.attrs["warnings"]) for response in responses)),
    }
