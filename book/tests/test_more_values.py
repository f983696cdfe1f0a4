"""Smoke with a second value of an axis: the numbers at the first stay, and those at the second are others.

At smoke most axes have one value. Here each gets the nearest that a larger size has, and so does each setting that
smoke leaves out, one at a time, with one seed and few steps.
"""

import numpy as np
import pytest
from contracts.cases import CLAIMS

from icllab.lab import registry
from icllab.lab.job import Request
from icllab.lab.run import compute, read

pytestmark = [pytest.mark.claims, pytest.mark.slow]
STEPS = ("step", "epochs", "updates")
FEW = {"steps": 20, "updates": 50, "transformer_updates": 20, "network_steps": 50}
"""Most steps, where a claim has their number fixed."""
ROUNDING = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}
"""Differences of programs of other shapes."""
IDLE = {
    "induction/weights_or_context setting=Zipf 0.5",
    "induction/weights_or_context setting=Zipf 1",
    "induction/weights_or_context setting=Zipf 1.5",
    "induction/weights_or_context setting=noise 1",
}
"""Additions that change nothing in so few steps."""
COSTLY = {
    "context_map/frozen_entities": 3.1,
    "context_map/frozen_entities dim=4": 2.7,
    "context_map/frozen_entities step=2": 2.2,
    "context_map/simplest_model": 4.4,
    "context_map/simplest_model family=mean_attention": 3.1,
    "descent/softmax_saddles": 2.6,
    "induction/abrupt_learning dim=15": 2.3,
    "induction/equal_labels_abolish label_count=5": 2.1,
    "induction/initial_weights": 3.0,
    "induction/ladder rung=items": 8.7,
    "induction/ladder rung=labels": 6.6,
    "induction/learning_or_recognition": 2.9,
    "induction/learning_or_recognition step=2": 2.1,
    "induction/needs_two_layers": 2.3,
    "induction/needs_two_layers dim=63": 2.6,
    "induction/needs_two_layers layers=2": 2.3,
    "induction/no_softmax_no_cliff": 3.0,
    "induction/no_softmax_no_cliff rate=0.15": 3.0,
    "induction/race_of_memorising": 2.4,
    "induction/race_of_memorising pairs=16": 2.6,
    "induction/two_of_nine": 2.0,
    "induction/what_must_go_right intervention=previous token": 2.0,
    "induction/what_the_curriculum_does": 3.0,
    "induction/what_the_curriculum_does intervention=L = N": 4.0,
    "routing/compositions": 7.4,
    "routing/compositions layers=2": 6.8,
    "routing/daughters_in_the_whole": 4.9,
    "routing/daughters_in_the_whole layers=2": 5.0,
    "routing/half_the_degeneracy": 7.3,
    "routing/half_the_degeneracy particles=500": 4.7,
    "singular/deformation": 2.1,
    "singular/per_length": 2.9,
    "singular/per_length source=text": 3.2,
    "singular/per_length step=2": 2.8,
    "singular/toy_superposition": 4.1,
    "singular/toy_superposition polygon=4": 5.2,
}
"""CPU seconds of an addition, and of the smoke that all of a claim are compared with, where they are over two."""
LEFT_OUT = {
    "asymptotics/context_length": 16.0,
    "asymptotics/gamma_inverts_the_covariance": 8.6,
    "asymptotics/in_context_curve": 22.7,
    "asymptotics/odds_of_memorising": 97.7,
    "asymptotics/real_table": 13.8,
    "asymptotics/synthetic_to_real": 10.2,
    "asymptotics/task_alignment": 6.9,
    "asymptotics/task_diversity": 9.6,
    "asymptotics/task_diversity_threshold": 15.3,
    "asymptotics/trained_linear_attention": 10.5,
    "asymptotics/transformer_double_descent": 8.3,
    "asymptotics/transformer_task_diversity": 16.6,
    "asymptotics/which_architectures": 14.8,
    "context_map/a_context_is_partly_a_step": 3.2,
    "context_map/exact_family": 7.5,
    "context_map/flag_token": 2.7,
    "context_map/rank_one_patch": 7.3,
    "context_map/simplest_model family=attention": None,
    "context_map/simplest_model family=dense": None,
    "context_map/simplest_model layers=2": None,
    "descent/functional_gd": 17.8,
    "descent/gd_plus_plus": 31.2,
    "descent/layers_are_steps": 11.2,
    "descent/multi_layer_preconditioner": 8.3,
    "descent/one_layer_is_preconditioned_gd": 9.3,
    "descent/softmax_depth_limit": 9.0,
    "descent/which_algorithm": 7.2,
    "induction/copying_in_context": 10.9,
    "induction/exponentials_or_products": 6.2,
    "induction/four_strategies": 18.4,
    "induction/ladder rung=buffers": 9.94,
    "induction/ladder rung=network": None,
    "induction/race_of_memorising classes_per_pair=5": None,
    "induction/what_must_go_right intervention=classifier transplanted": None,
    "induction/what_must_go_right intervention=layer 1 transplanted": None,
    "induction/what_must_go_right intervention=layer 2 transplanted": None,
    "induction/what_must_go_right intervention=no layer 1": None,
    "induction/what_must_go_right intervention=no layer 2": None,
    "induction/what_the_curriculum_does intervention=L = N, readout free": None,
    "induction/what_the_curriculum_does intervention=L = N, readout held": None,
    "induction/what_the_curriculum_does intervention=L = N, shuffled readout held": None,
    "language/context_as_weights": 3.4,
    "language/context_is_an_exact_patch": 2.8,
    "language/few_shot_is_recognition_or_learning": 4.4,
    "language/function_vectors_or_induction": 5.4,
    "language/induction_bump": 17.0,
    "language/induction_heads_in_a_real_model": 18.9,
    "language/loss_by_context_length": 1.0,
    "routing/blind_in_networks": 19.1,
    "routing/compositions width=32": None,
    "routing/daughters_in_the_whole program=c": None,
    "routing/daughters_in_the_whole program=d": None,
    "routing/daughters_in_the_whole program=e": None,
    "routing/daughters_in_the_whole program=f": None,
    "routing/daughters_in_the_whole updates=6": None,
    "routing/degeneracy_and_the_sign": 8.6,
    "routing/disjoint_contexts": 10.3,
    "routing/half_the_degeneracy hidden=1": None,
    "routing/half_the_degeneracy varied=A and B": None,
    "routing/interactions": 7.5,
    "routing/long_tail": 12.9,
    "routing/one_by_one": 7.8,
    "routing/one_daughter": 6.9,
    "routing/phases_with_contexts": 9.2,
    "routing/susceptibility_peaks": 9.3,
    "singular/additivity": 4.7,
    "singular/effective_dimension_across_the_cliff": 5.3,
    "singular/exact_coefficients": 8.6,
    "singular/linear_attention_is_reduced_rank": 7.7,
    "singular/llc_along_training": 4.9,
    "singular/toy_superposition nbeta=20": None,
    "singular/toy_superposition polygon=4+": None,
    "singular/toy_superposition polygon=5": None,
    "singular/toy_superposition polygon=5+": None,
    "singular/toy_superposition polygon=6": None,
}
"""What does not fit into 350 CPU seconds: an addition with its own, None if not measured; a claim with its smoke's."""


def shortest(claim):
    """Axes of smoke with one seed and few steps."""
    grid = claim.grid("smoke")
    values = {**grid.static, **grid.traced}
    axes = {name: values[name][:1] for name in ("seed",) if name in values}
    axes |= {name: values[name][:2] for name in STEPS if len(values.get(name, ())) > 1}
    axes |= {name: (min(values[name][0], 4),) for name in STEPS if len(values.get(name, ())) == 1}
    return axes | {
        name: (min(claim.at("smoke").fixed[name], most),) for name, most in FEW.items() if name in claim.fixed
    }


def additions(claim):
    """Pairs of an axis and a value that larger sizes have and smoke has not."""
    grids = [claim.grid(size) for size in claim.sizes]
    smoke, *larger = [{**grid.static, **grid.traced} for grid in grids]
    for axis, values in smoke.items():
        kinds = (int, float) if isinstance(values[0], float) else type(values[0])
        others = dict.fromkeys(value for axes in larger for value in axes.get(axis, ()))
        new = [value for value in others if value not in values and isinstance(value, kinds)]
        names = [value for value in new if isinstance(value, str)]
        if axis in STEPS and len(values) == 1:
            yield axis, shortest(claim)[axis][-1] + 2
        elif names:
            yield from ((axis, name) for name in names)
        elif axis != "seed" and len(values) == 1 and new:
            yield axis, min(new, key=lambda value: abs(value - values[0]))


def spelled(name, pair):
    """``claim axis=value``."""
    return f"{name} {pair[0]}={pair[1]}"


def measured(claim, axes, out):
    """The data of smoke at these values."""
    request = Request(claim.name, "smoke", axes, out=str(out))
    compute(request, progress=lambda *_: None)
    return read(request, theory=False)[0].load()


def cases():
    """Every claim with additions that fit, and these."""
    for name in (name for name in CLAIMS if name not in LEFT_OUT):
        fitting = [pair for pair in additions(registry.load(name)) if spelled(name, pair) not in LEFT_OUT]
        if fitting:
            yield pytest.param(name, fitting, id=name)


@pytest.mark.parametrize(("name", "pairs"), list(cases()))
def test_a_second_value_leaves_the_first_and_matters(name, pairs, tmp_path):
    claim = registry.load(name)
    axes = shortest(claim)
    first = measured(claim, axes, tmp_path / "first")
    moved, idle = {}, []
    for axis, value in pairs:
        values = first[axis].values.tolist()
        # A cell that is there stays; an axis within a cell is measured again with both values.
        out = tmp_path / ("first" if axis in claim.static else f"{axis} {value}".replace("/", " "))
        both = measured(claim, axes | {axis: (*values, value)}, out)
        both = both.sel({dim: first[dim].values for dim in first.coords if dim in first.dims and dim != axis})
        along = [quantity for quantity in both.data_vars if axis in both[quantity].dims]
        before, after = both.sel({axis: values[-1]}), both.sel({axis: value})
        if all(before[quantity].equals(after[quantity].assign_coords({axis: values[-1]})) for quantity in along):
            idle.append((axis, value))
        for quantity in first.data_vars:
            again = both[quantity].sel({axis: values}) if quantity in along else both[quantity]
            again, once = again.transpose(*first[quantity].dims).values, first[quantity].values
            if not (np.allclose(again, once, **ROUNDING) if once.dtype.kind == "f" else np.array_equal(again, once)):
                moved[axis, value, quantity] = again - once
    assert moved == {}
    assert idle == [pair for pair in pairs if spelled(name, pair) in IDLE]


def test_what_is_left_out_is_there():
    """A name that has changed would be left out for ever."""
    known = {spelled(name, pair) for name in CLAIMS for pair in additions(registry.load(name))}
    assert {*LEFT_OUT, *COSTLY, *IDLE} <= known | set(CLAIMS)
