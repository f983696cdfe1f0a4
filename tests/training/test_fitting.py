"""Training against recursions that can be written down, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.predictors import Rooted, Slope, Weighted, prompts, slope, task

import icllab as icl
from icllab.algorithms import Ridge
from icllab.core.errors import InputError
from icllab.training import Divergence, Ensemble, Fixed, Fresh, Plateau, Record, Sweep, TargetLoss, Until


def sgd(rate):
    return optax.sgd(rate)


def at_rate(rate):
    """Gradient descent at a rate that is a run-time number: one compiled program for all."""
    return {"optimizer": sgd, "sweep": {"optimizer.rate": [rate]}}


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_full_batches_and_sgd_are_gradient_descent(precision, getkey):
    """Exactly the recursion of least squares, at two rates and from two starts."""
    data = prompts(16)
    start = icl.ensemble(slope, seeds=2, key=getkey())
    run = icl.fit(
        start,
        task(),
        data=data,
        batch=None,
        steps=30,
        key=getkey(),
        optimizer=sgd,
        sweep={"optimizer.rate": [0.01, 0.1]},
        record="every",
    )
    x, y = np.asarray(data.x, np.float64).reshape(-1, 3), np.asarray(data.y, np.float64).reshape(-1)
    tolerance = 1e-12
    for member in range(4):
        w = np.asarray(start.stacked.w[member // 2], np.float64)
        rate = [0.01, 0.1][member % 2]
        for step in range(31):
            by_position = np.mean(((x @ w - y) ** 2).reshape(16, 5), axis=0)
            measured = run.dataset.training_loss.isel(member=member).sel(step=step)
            np.testing.assert_allclose(measured, by_position, rtol=tolerance, atol=tolerance)
            if step < 30:
                w = w - rate * 2 * x.T @ (x @ w - y) / len(y)
        np.testing.assert_allclose(run.member(member).w, w, rtol=tolerance, atol=tolerance)
    assert run.status == ("ok",) * 4
    assert run.dataset.seed.values.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(
        run.dataset["optimizer.rate"], np.asarray([0.01, 0.1] * 2, run.members.stacked.w.dtype)
    )


@pytest.mark.slow
def test_a_ridge_learns_the_noise_variance(getkey):
    """Ridge is Bayes for standard normal tasks where it equals the noise variance: there the loss is least."""
    noise = np.asarray([0.25, 1.0])
    run = icl.fit(
        icl.ensemble(lambda *, key: Ridge(2.0), seeds=6, key=getkey()),
        task(dim=4, length=8),
        steps=400,
        key=getkey(),
        batch=64,
        optimizer=optax.adam(optax.exponential_decay(5e-2, 100, 0.5)),
        sweep=Sweep({"task.noise_variance": noise}, mode="vmap"),
    )
    learned = np.asarray(run.members.stacked.ridge).reshape(6, 2)
    error = learned.std(axis=0, ddof=1) / 6**0.5
    assert (error < 0.03 * noise).all()
    assert (np.abs(learned.mean(axis=0) - noise) < 4 * error).all()


@functools.cache
def run_on_fresh_prompts(mode, generator, seeds, rates):
    """A few steps of every seed at every rate."""
    start = icl.ensemble(slope, seeds=seeds, key=jax.random.key(0))
    how = {"key": jax.random.key(3, impl=generator), "batch": 8, "steps": 10, "record": "every"}
    return icl.fit(start, task(), optimizer=sgd, sweep=Sweep({"optimizer.rate": rates}, mode=mode), **how)


@pytest.mark.parametrize("generator", [pytest.param("threefry2x32", marks=pytest.mark.slow), "unsafe_rbg"])
def test_map_and_vmap_see_the_same_prompts(generator):
    runs = [run_on_fresh_prompts(mode, generator, (0, 7), (0.1, 0.01)) for mode in ("map", "vmap")]
    one, other = (run.dataset.training_loss for run in runs)
    np.testing.assert_allclose(one.sel(step=slice(0, 1)), other.sel(step=slice(0, 1)), rtol=2e-6)
    np.testing.assert_allclose(one, other, rtol=1e-4)
    assert [run.header["mode"] for run in runs] == ["map", "vmap"]
    assert runs[0].header["generator"] == generator


@pytest.mark.parametrize(
    ("mode", "generator"),
    [
        ("map", "threefry2x32"),
        pytest.param("vmap", "threefry2x32", marks=pytest.mark.slow),
        pytest.param("map", "unsafe_rbg", marks=pytest.mark.slow),
        ("vmap", "unsafe_rbg"),
    ],
)
def test_further_members_change_none_that_are_there(mode, generator):
    """Another member, another swept number: the prompts are a matter of the seed."""
    few, many = (
        run_on_fresh_prompts(mode, generator, *members).dataset.training_loss.values
        for members in (((7,), (0.01, 0.1)), ((0, 7), (0.1, 0.01)))
    )
    np.testing.assert_allclose(few, many[[3, 2]], rtol=0 if mode == "map" else 1e-5)
    # At the first step members of one seed differ in nothing yet.
    np.testing.assert_allclose(many[::2, 0], many[1::2, 0], rtol=0 if mode == "map" else 1e-6)


def test_a_longer_run_begins_like_the_shorter(getkey):
    key, start = getkey(), slope(key=getkey())
    short, long = (icl.fit(start, task(), steps=n, key=key, batch=4, **at_rate(1e-3)) for n in (40, 700))
    common = [step for step in short.dataset.step.values if step in long.dataset.step.values]
    assert len(common) > 12
    np.testing.assert_array_equal(
        short.dataset.training_loss.sel(step=common), long.dataset.training_loss.sel(step=common)
    )
    assert short.dataset.step.values[-1] == 40
    assert 40 <= len(long.dataset.step) <= 64


def test_nothing_is_compiled_for_another_key_length_or_number(getkey):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )

    def go(steps, rates, noise, count):
        data = prompts(count, steps)
        icl.fit(
            icl.ensemble(slope, seeds=[count, count + 1], key=start_key),
            task(kind=Weighted),
            steps=Until(steps, TargetLoss(rates[0] * 1e-9)),
            key=getkey(),
            batch=4,
            data=data,
            optimizer=sgd,
            sweep=Sweep({"optimizer.rate": rates, "task.noise_variance": noise}, mode="map"),
        )

    start_key = getkey()
    go(20, [0.01, 0.02], [0.1], 12)
    before = len(compiled)
    assert before > 0
    go(1300, [0.03, 0.04], [0.3], 12)
    # `ensemble` compiles its `build` anew: that is one program, and small.
    assert len(compiled) - before <= 1


@pytest.mark.parametrize("mode", [pytest.param("map", marks=pytest.mark.slow), "vmap"])
def test_a_member_that_diverges_is_a_status_and_changes_no_other(mode, getkey):
    key, start_key = getkey(), getkey()

    def trained(rates, *rules):
        return icl.fit(
            icl.ensemble(slope, seeds=1, key=start_key),
            task(),
            data=prompts(20),
            steps=Until(200, *rules),
            key=key,
            batch=4,
            optimizer=sgd,
            sweep=Sweep({"optimizer.rate": rates}, mode=mode),
            record="every",
        )

    run = trained([0.01, 3.0])
    assert run.status == ("ok", "diverged")
    assert np.isfinite(np.asarray(run.members.stacked.w)).all()
    ended = run.dataset.ended.values
    assert ended[0] == 200
    assert 5 < ended[1] < 100
    losses = run.dataset.training_loss.isel(member=1)
    assert np.isfinite(losses.sel(step=slice(0, ended[1] - 1))).all()
    assert np.isnan(losses.sel(step=slice(ended[1] + 1, None))).all()
    alone = trained([0.01])
    np.testing.assert_allclose(
        run.member(0).w, alone.member(0).w, rtol=0 if mode == "map" else 1e-5, atol=0 if mode == "map" else 1e-6
    )
    early = trained([0.01, 3.0], Divergence(factor=10.0))
    assert early.status == ("ok", "diverged")
    assert 1 <= early.dataset.ended.values[1] < ended[1]
    np.testing.assert_array_equal(early.dataset.training_loss[0], run.dataset.training_loss[0])


def test_parameters_that_become_infinite_are_taken_back_wherever_the_run_is_cut(getkey):
    """A finite loss with an infinite gradient: the update is found and undone, to the same bits."""
    key = getkey()
    start = icl.ensemble(lambda *, key, shift: Rooted(shift), seeds=1, key=key, shift=[0.5, 0.0])
    runs = [
        icl.fit(
            start,
            task(),
            data=prompts(20),
            steps=40,
            key=key,
            batch=4,
            optimizer=optax.sgd(1e-3),
            sweep=Sweep(mode="map"),
            record=Record("every", keep=keep),
        )
        for keep in ([], [1], [2, 3, 9])
    ]
    for run in runs:
        assert run.status == ("ok", "diverged")
        assert run.dataset.ended.values.tolist() == [40, 0]
        assert np.asarray(run.members.stacked.shift)[1] == 0.0
        assert np.isfinite(run.dataset.training_loss[1, 0]).all()
        assert np.isnan(run.dataset.training_loss[1, 1:]).all()
        np.testing.assert_array_equal(run.members.stacked.shift, runs[0].members.stacked.shift)


def test_rules_end_members_one_by_one(getkey):
    data, key = prompts(16), getkey()
    starts = Ensemble(Slope(jnp.asarray(np.outer([0.0, 30.0], np.ones(3)), float)), {"seed": np.zeros(2, int)})

    def trained(target):
        return icl.fit(
            starts,
            task(),
            steps=Until(2000, target, Plateau(steps=50, improvement=1e-3, memory=1)),
            key=key,
            data=data,
            batch=None,
            optimizer=sgd,
            sweep=Sweep({"optimizer.rate": [0.05]}, mode="map"),
            record="every",
        )

    run = trained(TargetLoss(20.0))
    x, y = np.asarray(data.x, np.float64).reshape(-1, 3), np.asarray(data.y, np.float64).reshape(-1)
    w, step = np.full(3, 30.0), 0
    while np.mean((x @ w - y) ** 2) > 20.0:
        w, step = w - 0.05 * 2 * x.T @ (x @ w - y) / len(y), step + 1
    assert run.status == ("stopped", "stopped")
    assert run.dataset.ended.values.tolist() == [0, step]
    assert run.dataset.step.values[-1] == step  # nobody is left: the run is over
    np.testing.assert_allclose(run.member(1).w, w, rtol=1e-4)
    flat = trained(TargetLoss(1e-9))
    assert flat.status == ("stopped", "stopped")
    assert (flat.dataset.ended.values % 50 == 49).all()
    least = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(flat.members.stacked.w, np.stack([least, least]), atol=1e-2)


def test_fresh_prompts_are_reused_for_so_many_steps(getkey):
    """With no update, losses repeat within a block and differ between blocks; the first block is the first step's."""
    key = getkey()
    still = {"steps": 8, "key": key, "batch": 4, **at_rate(0.0), "record": "every"}
    once, plain, reused = (
        icl.fit(Slope(jnp.ones(3)), task(), data=data, **still).dataset.training_loss[0].values
        for data in (Fresh(), None, Fresh(reuse=3))
    )
    np.testing.assert_array_equal(once, plain)
    np.testing.assert_array_equal(reused[:3], np.broadcast_to(once[:1], (3, 5)))
    np.testing.assert_array_equal(reused[3:6], np.broadcast_to(once[1:2], (3, 5)))
    assert len(np.unique(once, axis=0)) == 9


@pytest.mark.parametrize("count", [12, None], ids=["own", "shared"])
def test_how_minibatches_are_drawn_reaches_the_run(count, getkey):
    """With no update the mean over an epoch is the loss on the whole set, exactly; with replacement it is not."""
    data = count or prompts(12)
    still = {"steps": 4, "key": getkey(), **at_rate(0.0), "record": "every"}
    whole, epochs, same, other = (
        icl.fit(Slope(jnp.ones(3)), task(), data=given, batch=batch, **still).dataset.training_loss[0, :4].mean("step")
        for given, batch in ((data, None), (data, 3), (Fixed(data), 3), (Fixed(data, minibatches="replacement"), 3))
    )
    np.testing.assert_allclose(epochs, whole, rtol=1e-5)
    np.testing.assert_array_equal(epochs, same)
    assert np.abs(other / whole - 1).max() > 0.01


def test_held_out_prompts_are_others_than_those_of_the_training():
    """Fitted to four labels, a slope errs less on them than on others; given its own prompts, just as much."""
    data = prompts(2, length=1)
    how = {"steps": 400, "key": jax.random.key(1), "batch": None, **at_rate(0.05), "data": data}
    law = task(length=1)
    own, given, drawn = (
        icl.fit(Slope(jnp.zeros(3)), law, record=Record([0], held_out=held_out), **how).dataset
        for held_out in (data, prompts(500, 7, length=1), 500)
    )
    np.testing.assert_array_equal(own.step, [0, 400])
    np.testing.assert_allclose(own.held_out_loss, own.training_loss, rtol=1e-4, atol=1e-6)
    for other in (given, drawn):
        np.testing.assert_array_equal(other.training_loss, own.training_loss)  # it is not trained on
        excess = (other.held_out_loss - other.training_loss)[0, -1]
        assert (excess > 4 * other.held_out_error[0, -1]).all()
        assert (other.held_out_error[0, -1] > 0).all()


def test_held_out_losses_have_their_errors(getkey):
    """With no update both losses estimate one number; the error is the loss's deviation over the root of prompts."""
    how = {"steps": 3, "key": getkey(), "batch": 4, "data": prompts(20), **at_rate(0.0)}
    run = icl.fit(Slope(jnp.ones(3)), task(), record=Record(held_out=2000), **how).dataset
    # (x.(1 - w) + noise)^2 is S times a chi-square; S = |1 - w|^2 + noise has mean 6.25 and variance 18.
    mean, variance = 3 * 2 + 0.25, 3 * (6.25**2 + 18) - 6.25**2
    assert np.abs((run.held_out_loss - mean) / run.held_out_error).max() < 4
    ratio = run.held_out_error.mean() / (variance / 2000) ** 0.5
    assert abs(ratio - 1) < 0.2  # its relative standard error is 0.05


def test_kept_parameters_are_those_of_the_step(getkey):
    key, start = getkey(), slope(key=getkey())
    how = {"data": prompts(20), "key": key, "batch": 4, **at_rate(0.01)}
    run = icl.fit(start, task(), steps=30, record=Record(keep=[0, 7, 30]), **how)
    assert run.trajectory.steps == (0, 7, 30)
    np.testing.assert_array_equal(run.trajectory.at(0).member(0).w, start.w)
    short = icl.fit(start, task(), steps=7, **how)
    np.testing.assert_array_equal(run.trajectory.at(7).member(0).w, short.predictor.w)
    np.testing.assert_array_equal(run.trajectory.stacked(0).w[2], run.predictor.w)
    with pytest.raises(InputError, match=r"one of the kept steps \[0, 7, 30\], got 8"):
        run.trajectory.at(8)


def test_only_what_is_trainable_changes(getkey):
    class Two(Slope):
        bias: jax.Array

        def __call__(self, prompt):
            return prompt.x @ self.w + self.bias

    start = Two(jnp.ones(3), jnp.ones(()))
    run = icl.fit(start, task(), data=prompts(20), steps=5, key=getkey(), batch=4, trainable=lambda model: model.bias)
    np.testing.assert_array_equal(run.predictor.w, start.w)
    assert run.predictor.bias != 1
    with pytest.raises(InputError, match="trainable: expected parts of the predictor"):
        icl.fit(start, task(), data=prompts(20), steps=5, key=getkey(), trainable=lambda model: model.wings)


def test_positions_choose_the_loss(getkey):
    key, start = getkey(), slope(key=getkey())
    how = {"data": prompts(20), "steps": 1, "key": key, "batch": 4, **at_rate(0.0)}
    every, some, last = (icl.fit(start, task(), positions=positions, **how) for positions in ("every", [1, 3], "last"))
    assert some.dataset.position.values.tolist() == [1, 3]
    assert last.dataset.position.values.tolist() == [4]
    np.testing.assert_allclose(every.dataset.training_loss.sel(position=[1, 3]), some.dataset.training_loss, rtol=1e-6)
    np.testing.assert_allclose(every.dataset.training_loss.sel(position=[4]), last.dataset.training_loss, rtol=1e-6)
