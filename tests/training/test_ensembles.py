"""One axis for seeds and swept numbers."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.predictors import Slope, slope

import icllab as icl
from icllab.core.errors import InputError
from icllab.training.sweeps import seed_numbers


def test_members_are_the_product_and_each_is_what_build_makes_of_it(getkey):
    key = getkey()
    members = icl.ensemble(slope, seeds=[3, 1], key=key, scale=[1.0, 2.0, 5.0], dim=4)
    assert members.size == len(members) == 6
    expected = list(itertools.product([3, 1], [1.0, 2.0, 5.0]))
    assert list(zip(members.coordinates["seed"], members.coordinates["scale"], strict=True)) == expected
    for i, (seed, scale) in enumerate(expected):
        alone = slope(key=jax.random.fold_in(key, seed), dim=4, scale=scale)
        np.testing.assert_allclose(members.member(i).w, alone.w, rtol=1e-6)
    # One seed, one draw: what is swept scales it and changes nothing else.
    np.testing.assert_allclose(members.stacked.w[1], 2 * members.stacked.w[0], rtol=1e-6)


def test_further_seeds_change_none_that_are_there(getkey):
    key = getkey()
    few, many = (icl.ensemble(slope, seeds=n, key=key) for n in (2, 5))
    np.testing.assert_array_equal(few.stacked.w, many.stacked.w[:2])


def test_crossing_repeats_members(getkey):
    members = icl.ensemble(slope, seeds=2, key=getkey())
    crossed = members.crossed({"rate": np.asarray([1.0, 2.0])})
    assert crossed.coordinates["seed"].tolist() == [0, 0, 1, 1]
    assert crossed.coordinates["rate"].tolist() == [1.0, 2.0, 1.0, 2.0]
    np.testing.assert_array_equal(crossed.stacked.w, jnp.repeat(members.stacked.w, 2, axis=0))
    with pytest.raises(InputError, match="sweep: expected each name once, got 'rate'"):
        crossed.crossed({"rate": np.asarray([1.0])})


def test_a_shape_is_not_swept(getkey):
    with pytest.raises(InputError) as caught:
        icl.ensemble(slope, seeds=1, key=getkey(), dim=[3, 4])
    assert str(caught.value) == (
        "dim: expected swept numbers that are leaves, got 'a static field'; "
        "a shape is fixed in one ensemble; make one ensemble for each"
    )


def test_an_error_of_build_itself_is_not_disguised(getkey):
    def build(*, key, scale):
        raise TypeError("the roof is missing")

    with pytest.raises(TypeError, match="the roof is missing"):
        icl.ensemble(build, seeds=1, key=getkey(), scale=[1.0, 2.0])


@pytest.mark.parametrize("seeds", [0, [], [1, 1], [-1], [2**31]])
def test_seeds_are_different_and_not_negative(seeds, getkey):
    with pytest.raises(InputError, match="seeds: expected at least one, different integers"):
        icl.ensemble(slope, seeds=seeds, key=getkey())


@pytest.mark.parametrize("seeds", ["2", 2.5, None, True, [1.5], ["1"]])
def test_seeds_are_integers_where_no_type_checker_is_on(seeds):
    with pytest.raises(InputError) as caught:
        inspect.unwrap(seed_numbers)(seeds)
    wanted = "seeds: expected at least one, different integers from 0 to 2^31 - 1, got "
    assert str(caught.value) == f"{wanted}{seeds!r}; seeds=2 means 0 and 1"


def test_seeds_may_be_an_array():
    unchecked = inspect.unwrap(seed_numbers)
    assert unchecked(np.arange(2)) == unchecked(jnp.arange(2)) == (0, 1)


@pytest.mark.parametrize(
    ("build", "came"),
    [
        (Slope(jnp.ones(2)), "got \"Slope, missing a required argument: 'prompt'\"; lambda"),
        (lambda: Slope(jnp.ones(2)), "got \"<lambda>, got an unexpected keyword argument 'key'\"; lambda"),
        (Slope, "got \"Slope, missing a required argument: 'w'\"; lambda"),
    ],
)
def test_what_is_not_built_from_a_key_is_refused_in_one_line(build, came, getkey):
    with pytest.raises(InputError) as caught:
        icl.ensemble(build, seeds=2, key=getkey())
    assert str(caught.value).startswith("build: expected a function of key that makes a predictor, " + came)
    assert "\n" not in str(caught.value)


def test_a_member_that_is_not_there(getkey):
    members = icl.ensemble(lambda *, key: Slope(jnp.ones(2)), seeds=2, key=getkey())
    with pytest.raises(InputError, match="member: expected an integer from 0 to 1, got 2"):
        members.member(2)
