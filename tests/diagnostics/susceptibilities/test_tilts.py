"""Responses that are known: of Gaussians by Isserlis' theorem, of the landscape by tilting it, of blocks as zero."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.core.errors import InputError
from icllab.diagnostics import HMC, SGLD, LinearResponse, Quadrature, susceptibility
from icllab.diagnostics.curvature.products import GaussNewton, Hessian
from icllab.diagnostics.curves.flow_fits import landscape_loss as landscape

H = np.array([4.0, 1.0, 0.2])
TILTED = np.array([1.0, 3.0, 0.5])
AWAY = np.array([0.3, -0.2, 0.5])
NBETA, GAMMA = 30.0, 1.0
CHAINS = HMC(chains=16, warm_up=300, draws=1500)
PLACE = (1.0, 1.5, 3.0)  # beta, alpha, xi: on the landscape, with eight pairs and 32 labels


class Bowl(eqx.Module):
    """A quadratic loss."""

    curvatures: jax.Array
    least: jax.Array

    def __call__(self, w):
        return jnp.sum(self.curvatures * (w - self.least) ** 2) / 2


class Landscape(eqx.Module):
    """The loss of an induction head, of which a share h of the answers is a label that is not in the context."""

    h: jax.Array

    def __call__(self, w):
        return landscape(w, 8, 32) + self.h * outside(w)


def outside(w):
    """What the loss gains where the answer is outside the context: the logit of the right label."""
    return w[2] * attention(w)


def attention(w):
    """From the query to its label."""
    y = jax.nn.sigmoid(w[0] - float(np.log(8)))
    return jnp.exp(w[1] * y) / (jnp.exp(w[1] * y) + 16)


def first(w):
    """A parameter."""
    return w[0]


def second(w):
    """A quadratic of two parameters."""
    return w[1] ** 2 / 2 + w[1] * w[2]


def bowl(curvatures=H, least=(0.0, 0.0, 0.0)):
    return Bowl(jnp.asarray(curvatures, float), jnp.asarray(least, float))


def gaussian():
    """What the responses of both observables are, by Isserlis' theorem."""
    variance = 1 / (NBETA * H + GAMMA)
    slope, bend = -TILTED * AWAY, TILTED - H
    quadratic = np.array([[0, 0, 0], [0, 1, 1], [0, 1, 0.0]])
    both = np.trace(quadratic @ np.diag(variance) @ np.diag(bend) @ np.diag(variance)) / 2
    return -NBETA * np.array([variance[0] * slope[0], both])


@functools.cache
def of_bowl(route):
    with jax.enable_x64(True):
        named = {"tilted": {"bowl": bowl(TILTED, AWAY)}, "observables": {"first": first, "second": second}}
        how = {"nbeta": NBETA, "localization": GAMMA, "key": jax.random.key(0)}
        return ask(susceptibility, bowl(), jnp.zeros(3), route=route, **named, **how)


def on_landscape(route, h=0.0, seed=0):
    with jax.enable_x64(True):
        plain, tilt = Landscape(jnp.asarray(h)), Landscape(jnp.asarray(h + 1.0))
        named = {"tilted": {"outside": tilt}, "observables": {"loss": Landscape(jnp.asarray(0.0)), "z": attention}}
        how = {"nbeta": 20.0, "localization": 4.0, "key": jax.random.key(seed)}
        return ask(susceptibility, plain, jnp.asarray(PLACE), route=route, **named, **how)


exact = functools.cache(functools.partial(on_landscape, Quadrature(points=65, reach=12.0, scale=1.0)))


def test_quadrature_and_linear_response_are_exact_where_all_is_quadratic():
    wanted = gaussian()
    by_grid, by_solving = of_bowl(Quadrature(points=65)), of_bowl(LinearResponse())
    np.testing.assert_allclose(by_grid["susceptibility"][:, 0], wanted, rtol=1e-7)
    np.testing.assert_allclose(by_solving["susceptibility"][:, 0], wanted, rtol=1e-10)
    np.testing.assert_allclose(by_solving["first_order"][:, 0], [wanted[0], 0], atol=1e-12)
    np.testing.assert_allclose(by_solving["second_order"][:, 0], [0, wanted[1]], atol=1e-12)
    np.testing.assert_allclose(by_grid["mean"], [0, 1 / (NBETA * H[1] + GAMMA) / 2], atol=1e-9)
    variance = 1 / (NBETA * H + GAMMA)
    of_tilt = np.sum(variance * (TILTED * AWAY) ** 2) + np.sum((variance * (TILTED - H)) ** 2) / 2
    np.testing.assert_allclose(
        by_grid["correlation"][0, 0], -wanted[0] / NBETA / np.sqrt(variance[0] * of_tilt), rtol=1e-7
    )
    assert by_grid.attrs["warnings"] == by_solving.attrs["warnings"] == []
    assert by_solving.attrs["resolution"] == GAMMA / NBETA


def test_the_error_of_random_signs_is_that_of_a_trace():
    r"""Of v'Mv for signs v the variance is twice the sum of squares off the diagonal of M's symmetric part."""
    probes = 1000
    with jax.enable_x64(True):
        route = LinearResponse(curvature=Hessian(bowl(), jnp.zeros(3)), dense=0, probes=probes)
        found = of_bowl.__wrapped__(route)
    variance = 1 / (NBETA * H + GAMMA)
    quadratic = np.array([[0, 0, 0], [0, 1, 1], [0, 1, 0.0]])
    m = quadratic @ np.diag(variance * (TILTED - H) * variance)
    apart = (m + m.T) / 2 * (1 - np.eye(3))
    wanted = NBETA * np.sqrt(2 * np.sum(apart**2) / probes) / 2
    error = found["susceptibility_error"].values[:, 0]
    assert error[0] == 0
    assert error[1] == pytest.approx(wanted, rel=0.2)  # itself known to one in forty-five
    assert abs(float(found["susceptibility"][1, 0]) - gaussian()[1]) < 4 * wanted


def test_chains_find_the_gaussian_within_errors_that_are_small():
    found, wanted = of_bowl(CHAINS), gaussian()
    error = found["susceptibility_error"].values[:, 0]
    assert (error < 0.15 * np.abs(wanted)).all()
    assert (np.abs(found["susceptibility"].values[:, 0] - wanted) < 3 * error).all()
    assert found.attrs["warnings"] == []


def test_the_response_is_the_slope_of_the_mean_when_the_landscape_is_tilted():
    """By quadrature, to second order in h: a quarter of the difference at half of it."""
    wanted = exact()["susceptibility"].values[:, 0]

    def slope(h):
        return (exact(h=h)["mean"].values - exact(h=-h)["mean"].values) / (2 * h)

    coarse, fine = (np.abs(slope(h) - wanted) for h in (0.02, 0.01))
    np.testing.assert_allclose(coarse / fine, 4, rtol=0.02)
    assert (fine < 0.01 * np.abs(wanted)).all()
    assert exact().attrs["warnings"] == []


def test_chains_agree_with_quadrature_and_with_tilted_chains_on_the_landscape():
    wanted, found = exact(), on_landscape(CHAINS)
    error = found["susceptibility_error"].values[:, 0]
    assert (error < 0.05 * np.abs(wanted["susceptibility"].values[:, 0])).all()
    assert (np.abs(found["susceptibility"] - wanted["susceptibility"]).values[:, 0] < 3 * error).all()
    assert (np.abs(found["mean"] - wanted["mean"]).values < 3 * found["mean_error"].values).all()
    h, up, down = 0.2, on_landscape(CHAINS, 0.2, 1), on_landscape(CHAINS, -0.2, 2)
    slope = (up["mean"] - down["mean"]).values / (2 * h)
    of_slope = np.hypot(up["mean_error"].values, down["mean_error"].values) / (2 * h)
    tilted = (exact(h=h)["mean"].values - exact(h=-h)["mean"].values) / (2 * h)
    assert (of_slope < 0.1 * np.abs(tilted)).all()
    bend = np.abs(tilted - wanted["susceptibility"].values[:, 0])  # of the third order, by quadrature
    assert (np.abs(slope - found["susceptibility"].values[:, 0]) < 3 * np.hypot(error, of_slope) + bend).all()


def test_linear_response_is_the_limit_of_low_temperatures():
    """Of a loss with a cubic term: what is left out is smaller by one over nbeta."""

    def bent(w):
        return w[0] ** 2 / 2 + w[0] ** 3 / 6 + w[0] ** 4 / 24 + (w[0] * w[1]) ** 2 / 4 + w[1] ** 2

    def tilt(w):
        return bent(w) + w[0] + jnp.sin(w[1])

    def gap(nbeta):
        how = {"tilted": {"tilt": tilt}, "observables": {"both": lambda w: jnp.exp(w[0]) + w[1]}, "localization": 0.5}
        how |= {"nbeta": nbeta, "key": jax.random.key(0)}
        with jax.enable_x64(True):
            by_grid, by_solving = (
                ask(susceptibility, bent, jnp.zeros(2), route=route, **how)
                for route in (Quadrature(), LinearResponse())
            )
        return float(by_solving["susceptibility"][0, 0] / by_grid["susceptibility"][0, 0] - 1)

    gaps = [gap(nbeta) for nbeta in (1e3, 4e3)]
    assert abs(gaps[0]) < 0.01
    np.testing.assert_allclose(gaps[0] / gaps[1], 4, rtol=0.1)


@pytest.mark.slow
def test_products_alone_give_what_the_matrix_gives():
    """A Gauss-Newton matrix of forty parameters: the first order to the solver's tolerance, the second by probes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 20)) / 20**0.5

    def outputs(w, batch):
        return jnp.tanh(batch @ w[:20]) + batch @ w[20:]

    def mean(z, batch):
        return jnp.sum(z**2) / 2 / len(batch)

    with jax.enable_x64(True):
        data, at = jnp.asarray(x), jnp.zeros(40)
        made = GaussNewton(mean, at, data, outputs=outputs)

        def loss(w):
            return mean(outputs(w, data), data)

        def tilt(w):
            return loss(w) + mean(outputs(w, data[:30]) - 0.3, data[:30])

        named = {"tilted": {"half": tilt}, "observables": {"first": lambda w: w[0] + w[21], "loss": loss}}
        how = {"nbeta": 200.0, "localization": 1.0, "key": jax.random.key(1), **named}
        written, by_products = (
            ask(susceptibility, loss, at, route=LinearResponse(curvature=made, dense=dense, probes=64), **how)
            for dense in (300, 0)
        )
        by_hessian = ask(susceptibility, loss, at, route=LinearResponse(), **how)
    assert by_products.attrs["warnings"] == []
    np.testing.assert_allclose(by_products["first_order"][0], written["first_order"][0], rtol=1e-4)
    error = by_products["susceptibility_error"].values[1, 0]
    assert 0 < error < 0.1 * abs(float(written["susceptibility"][1, 0]))
    assert abs(float(by_products["susceptibility"][1, 0] - written["susceptibility"][1, 0])) < 3 * error
    # All residuals are zero at the point: there the Hessian is the Gauss-Newton matrix.
    np.testing.assert_allclose(written["susceptibility"], by_hessian["susceptibility"], rtol=1e-6)


class Blocks(eqx.Module):
    """Two contexts in weights of their own, or sharing one: the losses of products that are asked for zero."""

    shared: bool = eqx.field(static=True)
    which: int | None = eqx.field(static=True, default=None)

    def __call__(self, w):
        terms = [(w[0] * w[1]) ** 2 / 2, (w[0 if self.shared else 2] * w[3 - self.shared]) ** 2 / 2]
        return sum(terms) if self.which is None else terms[self.which]


def test_contexts_in_weights_of_their_own_do_not_respond_to_each_other():
    """The cross-susceptibility: zero by quadrature, within three errors of zero by chains, and not if one is shared."""
    how = {"nbeta": 100.0, "localization": 1.0, "key": jax.random.key(0)}

    def cross(shared, route):
        tilt = lambda w: Blocks(shared)(w) + Blocks(shared, 1)(w)  # noqa: E731
        named = {"tilted": {"more of 1": tilt}, "observables": {"loss 0": Blocks(shared, 0)}}
        with jax.enable_x64(True):
            return ask(susceptibility, Blocks(shared), jnp.zeros(4 - shared), route=route, **named, **how)

    apart, by_chains = cross(False, Quadrature(points=33)), cross(False, CHAINS)
    together = cross(True, Quadrature(points=129))
    scale = abs(float(together["susceptibility"][0, 0]))
    assert abs(float(apart["susceptibility"][0, 0])) < 1e-12
    assert float(together["susceptibility"][0, 0]) < 0
    error = float(by_chains["susceptibility_error"][0, 0])
    assert error < 0.1 * scale
    assert abs(float(by_chains["susceptibility"][0, 0])) < 3 * error


def test_what_has_no_effect_is_refused():
    how = {"nbeta": NBETA, "localization": GAMMA, "key": jax.random.key(0), "route": Quadrature(points=9)}
    tilted, seen = {"tilt": bowl(TILTED, AWAY)}, {"first": first}
    call = functools.partial(ask, susceptibility, bowl(), jnp.zeros(3), **how)
    with pytest.raises(InputError, match=r"tilted: expected a loss that differs from the loss, got 'same'"):
        call(tilted={"same": bowl()}, observables=seen)
    with pytest.raises(InputError, match=r"observables: expected numbers that the parameters change, got 'one'"):
        call(tilted=tilted, observables={"one": lambda w: jnp.ones(())})
    with pytest.raises(InputError, match="observables: expected at least one"):
        call(tilted=tilted, observables={})
    with pytest.raises(InputError, match=r"nbeta: expected a finite number > 0"):
        call(tilted=tilted, observables=seen, nbeta=0.0)
    with pytest.raises(InputError, match=r"route: expected .*HMC\(\)"):
        call(tilted=tilted, observables=seen, route=SGLD())
    with pytest.raises(InputError, match="at most 40000000 nodes"):
        call(tilted=tilted, observables=seen, route=Quadrature(points=401))
    with pytest.raises(InputError, match="eigenvalues above minus the resolution"):
        ask(
            susceptibility, bowl(-H), jnp.zeros(3), tilted=tilted, observables=seen, **how | {"route": LinearResponse()}
        )


def test_a_coarse_grid_and_a_short_one_warn_and_so_does_a_slope():
    named = {"tilted": {"tilt": bowl(TILTED, AWAY)}, "observables": {"first": first}}
    how = {"nbeta": NBETA, "localization": GAMMA, "key": jax.random.key(0), **named}
    call = functools.partial(ask, susceptibility, bowl(), jnp.zeros(3))
    assert "too coarse" in call(route=Quadrature(points=9), **how).attrs["warnings"][0]
    assert any(
        "ends too early" in said for said in call(route=Quadrature(points=33, reach=0.5), **how).attrs["warnings"]
    )
    beside = ask(susceptibility, bowl(), jnp.ones(3), route=LinearResponse(), **how)
    assert "no minimum" in beside.attrs["warnings"][0]


def root(w):
    """An observable whose gradient is no number where the chains start."""
    return jnp.sqrt(w[0] ** 2)


def test_the_stated_error_of_chains_is_their_scatter():
    """Of 24 keys the root mean square error is the stated one, to a third: four standard errors of it are 0.58."""
    how = {"nbeta": NBETA, "localization": GAMMA, "route": HMC(chains=8, warm_up=100, draws=200)}
    with jax.enable_x64(True):
        named = {"tilted": {"bowl": bowl(TILTED, AWAY)}, "observables": {"first": first, "root": root}}
        runs = [ask(susceptibility, bowl(), jnp.zeros(3), key=jax.random.key(i), **named, **how) for i in range(24)]
    values, errors = (
        np.array([run[name].values[:, 0] for run in runs]) for name in ("susceptibility", "susceptibility_error")
    )
    ratio = np.mean(((values[:, 0] - gaussian()[0]) / errors[:, 0]) ** 2) ** 0.5
    assert 1 / 1.6 < ratio < 1.6
    # E sqrt(w^2) of a normal variable.
    mean = np.mean([float(run["mean"][1]) for run in runs])
    np.testing.assert_allclose(mean, (2 / np.pi / (NBETA * H[0] + GAMMA)) ** 0.5, rtol=0.02)
