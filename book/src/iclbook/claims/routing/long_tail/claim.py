r"""Does learning from context need a long tail of contexts, and do several lengths suffice without it?

A context shows a function :math:`f` at some items, and the label of an item is asked for; half of the queries are
among the items shown, and only an oracle with the functions of the training can answer the others. Networks are trained
on *few*, *some* or *many* functions that come equally often, or on as many with a *tail*, :math:`\pi_c \propto
c^{-\alpha}`, whose entropy is that of the few:

.. math:: \exp\Bigl(-\sum_c \pi_c \ln \pi_c\Bigr) = 8.3

with contexts of one length, or of all lengths up to it, equally often. Tests of the longest length tell what they have
learned: *new* functions, and *edited* ones, those of the training with the label of the query replaced, in the context
and as the answer. *Unseen* queries, of functions of the training, tell what they recall.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

POOLS = {"few": (8, False), "some": (32, False), "many": (512, False), "tail": (512, True)}
"""Number of functions, and whether their frequencies are those of the power law."""
LENGTHS = ("one", "several")
JUDGED = {"few": LENGTHS, "some": LENGTHS[:1], "many": LENGTHS[:1], "tail": LENGTHS}
"""The lengths at which the claim says whether functions are learned."""
TESTS = ("known", "unseen", "new", "edited")
UPDATES = 2000
STEPS = (0, 250, 500, 750, 1000, 1500, UPDATES)
LEARNED = 0.8
RECALLED = 0.5
HELP = 0.1


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The accuracy of naming any label of the context, if the query is among its N items."""
    numbers = fixed_values(dataset)
    pairs = numbers["pairs"]
    guess = 1 / pairs + (1 - 1 / pairs) / numbers["label_count"]
    return dataset.assign(accuracy_line=xr.full_like(dataset.step, guess, dtype=float))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Some functions and a tail are learned from context; few or many functions are not."""
    last = dataset.sel(step=[step for step in dataset.step.values if step <= UPDATES]).isel(step=-1, drop=True)
    quantity = "accuracy on functions of the training, with the query among the items shown"
    floor = 2 / fixed_values(dataset)["label_count"]
    findings = checks.above("begun", quantity, estimates.mean(last["accuracy"].sel(test_set="known", drop=True)), floor)
    whole = set(TESTS) <= set(dataset.test_set.values) and int(dataset.step.max()) >= UPDATES
    for pool in (name for name in POOLS if whole and name in dataset.pool.values):
        findings += _of_pool(pool, last.sel(pool=pool))
    complete = whole and set(POOLS) <= set(dataset.pool.values) and set(LENGTHS) <= set(dataset.lengths.values)
    return findings + checks.complete("all", f"all pools and lengths, for {UPDATES} updates", complete)


def _of_pool(pool: str, last: xr.Dataset) -> list[Finding]:
    """Judge one pool."""
    accuracy, findings = last["accuracy"], []
    lengths = [name for name in LENGTHS if name in last.lengths.values and name in JUDGED[pool]]
    for test in ("new", "edited"):
        estimate = estimates.mean(accuracy.sel(test_set=test, lengths=lengths))
        side, name = (checks.above, "learned") if pool in ("some", "tail") else (checks.below, "not_learned")
        findings += side(name, f"accuracy on {test} functions", estimate, LEARNED)
    if pool == "few":
        estimate = estimates.mean(accuracy.sel(test_set="unseen", lengths=lengths))
        findings += checks.above(
            "recalled", "accuracy on unseen queries of functions of the training", estimate, RECALLED
        )
    if pool == "many" and set(LENGTHS) <= set(last.lengths.values):
        accuracies = accuracy.sel(test_set="edited", drop=True)
        many_lengths, one_length = (accuracies.sel(lengths=name, drop=True) for name in reversed(LENGTHS))
        quantity = "accuracy on edited functions at several lengths - at one"
        findings += checks.above("several_lengths", quantity, estimates.mean(many_lengths - one_length), HELP)
    if pool != "many":
        recall = estimates.mean(last["recall_accuracy"].sel(test_set="edited", drop=True))
        findings += checks.below("level", "accuracy of recall on edited functions", recall, RECALLED)
    return findings


def figure(dataset: xr.Dataset):
    """Draw accuracies on edited functions at one length and at several, and on unseen queries, along training."""
    tests = [name for name in ("edited", "unseen") if name in dataset.test_set.values] or ["known"]
    lengths = [name for name in LENGTHS if name in dataset.lengths.values]
    lines = {test: None if test == "unseen" else "accuracy_line" for test in tests}
    rows = [
        Panel("accuracy", line, ylim=(-0.03, 1.03), at={"test_set": test, "lengths": length})
        for test, line in lines.items()
        for length in lengths
    ]
    part = dataset.sel(pool=[name for name in POOLS if name in dataset.pool.values])
    return panels(part, rows, x="step", hue="pool", line_name="any label of the context", columns=len(lengths))


FEW = {"pool": ("few",), "seed": tuple(range(4))}

claim = Claim(
    title="A long tail of functions helps",
    sentence=(
        "Equally frequent, 32 functions are learned from context, 8 and 512 are not; 512 with a long tail are; several "
        "lengths help 512, and do not suffice for 8."
    ),
    conditions=(
        "Transformers of two layers, 2000 updates by Adam; a tail of exponent 1.75; four pairs, or one to four; half "
        "of the queries are not shown. Learned: an accuracy above 0.8; help: by 0.1, set on these data. The sentence "
        "was chosen on eleven other seeds."
    ),
    sources=("SLT22",),
    axes=(Axis("pool", "P", "functions in training"), Axis("lengths", "N", "lengths of contexts in training")),
    quantities=("accuracy", Quantity("recall_accuracy", "A_P", "accuracy of recall")),
    static=("pool",),
    outputs=("lengths", "step", "test_set"),
    fixed={"items": 16, "label_count": 8, "pairs": 4, "zipf_exponent": 1.75, "shown": 0.5}
    | {"width": 32, "layers": 2, "heads": 2, "batch": 64, "prompts": 512},
    sizes={
        "smoke": {"pool": ("few",), "lengths": LENGTHS[:1], "step": (0, 150), "test_set": TESTS[:1], "seed": 2},
        "small": {"pool": tuple(POOLS), "lengths": LENGTHS, "step": STEPS, "test_set": TESTS, "seed": 8},
        "medium": {"pool": tuple(POOLS), "lengths": LENGTHS, "step": (*STEPS, 4000, 8000), "test_set": TESTS}
        | {"seed": Seeds(12, block=6)},
    },
    key=27,
    controls={
        "shuffled": Control("the label that is asked for is drawn at random", measure={"shuffled": True}),
        "in_context": Control(
            "every query is among the items shown: nothing is to be recalled", {"shown": 1.0}, axes=FEW
        ),
        "leaked": Control("the tests are of functions of the training, not edited", {"leaked": True}, axes=FEW),
    },
)
