"""What is measured of compositions that are no functions, and the check on made-up losses."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

from iclbook.claims.routing import _transformers
from iclbook.claims.routing.compositions import claim, measure
from icllab.lab.checks import Outcome

KEY = jax.random.key(0)
SIZES = {"symbols": 4, "length": 2, "width": 4, "heads": 1, "batch": 8, "prompts": 4, "zipf_exponent": 1.0}
POINT = SimpleNamespace(
    **SIZES, layers=1, functions=15, program=("a", "b", "bac"), parts=claim.BOTH, step=(0, 2), seed=(0, 1)
)


def test_strangers_stand_in_the_places_of_the_parts_alone():
    assert "".join(claim.strangers(claim.PROGRAMS)) == "ijghkhfgdeablbacmn"
    used = {letter for name in (*claim.PROGRAMS, *claim.strangers(claim.PROGRAMS)) for letter in name}
    assert claim.IDLE not in used
    assert ord(max(used | {claim.IDLE})) - ord("a") + 1 == claim.FUNCTIONS
    assert set(claim.PARTS) == set("".join(claim.EARLY + claim.LATE))


def test_both_worlds_have_the_same_compositions_and_differ_in_what_is_asked_alone():
    asked, strange = (measure.machine(POINT, parts, by_data=True, idle=False, key=KEY) for parts in claim.BOTH)
    np.testing.assert_array_equal(asked.tables, strange.tables)
    np.testing.assert_array_equal(asked.turns, strange.turns)
    np.testing.assert_array_equal(asked.frequencies, strange.frequencies)
    assert asked.programs == ((0,), (1,), (1, 0, 2))
    assert strange.programs == ((8,), (9,), (1, 0, 2))
    assert asked.vocabulary == strange.vocabulary
    assert asked.nearest_function_error((1, 0, 2)) > 0


def test_idle_functions_leave_a_composition_its_first_part():
    task = measure.machine(POINT, "asked", by_data=True, idle=True, key=KEY)
    assert task.programs == ((0,), (1,), (1, 14, 14))
    ((_, whole),), ((_, part),) = task.every_string((1, 14, 14)), task.every_string((1,))
    np.testing.assert_array_equal(whole, part)
    ((strings, answers),) = task.every_string((14,))
    np.testing.assert_array_equal(answers, strings)


def test_networks_start_alike_and_losses_are_of_their_own_task(monkeypatch):
    tasks, networks, optimizers, trained = [], [], [], _transformers.train

    def kept(task, network, point, **how):
        tasks.append(task)
        networks.append(network)
        optimizers.append(how["optimizer"])
        return trained(task, network, point, **how)

    monkeypatch.setattr(_transformers, "train", kept)
    found = measure.measure(POINT, key=KEY)
    dims, losses = found["program_loss"]
    assert (dims, losses.shape) == (("seed", "parts", "program", "step"), (2, 2, 3, 2))
    assert [task.programs[0] for task in tasks] == [(0,), (8,)] * 2
    np.testing.assert_array_equal(networks[0].readout.weight, networks[1].readout.weight)
    assert not np.array_equal(networks[0].readout.weight, networks[2].readout.weight)
    np.testing.assert_array_equal(tasks[0].turns, tasks[1].turns)
    assert not np.array_equal(tasks[0].tables, tasks[2].tables)
    np.testing.assert_allclose(found["guess_loss"][1][0, 1], tasks[1].guessing_losses())
    np.testing.assert_allclose(found["nearest_error"][1][0, 0, :2], 0)
    assert found["nearest_error"][1][:, :, 2].min() > 0
    assert [adam_rate(one) for one in optimizers] == pytest.approx([0.003] * 4, rel=1e-4)
    group = measure.measure(POINT, key=KEY, by_data=False)
    np.testing.assert_array_equal(group["nearest_error"][1], 0)
    np.testing.assert_allclose(group["guess_loss"][1], np.log(4), rtol=1e-6)
    tasks.clear()
    measure.measure(POINT, key=KEY, reversed=True)
    np.testing.assert_allclose(tasks[0].frequencies, np.array([2, 3, 6]) / 11, rtol=1e-5)


def made_up(waits=0.6, helps=1.1, error=0.25, missed=0, seeds=24):
    """Logistic losses at 60 steps over the square root of the frequency, with ratios as given."""
    rng = np.random.default_rng(0)
    steps, pi = np.array(claim.STEPS, float), 1 / np.arange(1, 13) / np.sum(1 / np.arange(1, 13))
    at = {name: i for i, name in enumerate(claim.PROGRAMS)}
    times = 60 * pi**-0.5 * np.exp(0.2 * rng.normal(size=(seeds, 2, 12)))
    for name in claim.EARLY:
        times[..., at[name]] = waits * np.max([times[..., at[part]] for part in name], axis=0)
    for name in claim.LATE:
        times[:, 0, at[name]] *= helps
    times[:missed, :, at["e"]] = 1e6
    guess = np.full((seeds, 2, 12), 1.5)
    losses = guess[..., None] / (1 + (steps / times[..., None]) ** 6)
    errors = np.array([error if len(name) > 1 else 0.0 for name in claim.PROGRAMS])
    dims = ("layers", "width", "seed", "parts", "program", "step")
    coords = {"layers": [2], "width": [32], "seed": range(seeds), "parts": list(claim.BOTH)}
    coords |= {"program": list(claim.PROGRAMS), "step": steps}
    rows = {"program_loss": (dims, losses[None, None]), "guess_loss": (dims[:-1], guess[None, None])}
    rows["nearest_error"] = (dims[:-1], np.broadcast_to(errors, guess.shape)[None, None])
    attrs = {"configuration": json.dumps({"fixed": {"zipf_exponent": 1.0}})}
    return claim.theory(xr.Dataset(rows, coords=coords, attrs=attrs).sortby("program"))


outcomes, failing, outcome = judged(claim.check)


def test_ratios_are_of_the_latest_part_and_of_the_same_composition():
    found = made_up(waits=0.7, helps=1.3)
    np.testing.assert_allclose(found["wait_ratio"], 0.7, rtol=0.02)
    assert float(np.log(found["help_ratio"]).mean()) == pytest.approx(np.log(1.3), abs=0.15)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(error=0.0)) == ["new"]
    assert failing(made_up(waits=1.4)) == ["does_not_wait"]
    assert failing(made_up(helps=0.4)) == ["no_help"]
    assert outcome(made_up(helps=0.8)) is Outcome.UNDECIDED


def test_programs_that_are_not_learned_count_with_the_last_step():
    assert outcome(made_up(missed=1)) is Outcome.HOLDS
    assert outcomes(made_up(missed=20))["learned"] is Outcome.UNDECIDED
    late = made_up(waits=1e3)
    assert failing(late) == ["does_not_wait"]
    assert float(late["wait_ratio"].max()) < 1e3
