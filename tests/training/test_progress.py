"""The bar: on stderr where asked for, and silent where nobody looks."""

import jax
import optax
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.training import Record, progress


def test_silent_without_a_terminal(capfd):
    icl.fit(
        slope(key=jax.random.key(0)),
        task(),
        data=prompts(9),
        steps=2,
        key=jax.random.key(1),
        batch=4,
        optimizer=optax.sgd(0.1),
    )
    assert capfd.readouterr() == ("", "")


def test_a_bar_where_it_is_asked_for(capfd):
    how = {"data": prompts(9), "key": jax.random.key(1), "batch": 4, "optimizer": optax.sgd(0.1)}
    icl.fit(slope(key=jax.random.key(0)), task(), steps=2, record=Record(progress=True), **how)
    out, err = capfd.readouterr()
    assert out == ""
    assert "2/2" in err


def test_a_bar_says_steps_loss_and_members(capfd):
    with progress.shown(100, 0, 3, True) as show:
        show(50, 0.125, 2)
        show(100, 0.0625, 2)
    out, err = capfd.readouterr()
    assert out == ""
    assert "100/100" in err
    assert "loss 0.0625, 2 of 3 members" in " ".join(err.split())
