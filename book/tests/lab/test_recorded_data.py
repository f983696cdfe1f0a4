"""What the laboratory does with records that only the book has: other labels, reductions, orders of outputs."""

import json

import pytest
import xarray as xr

from icllab.lab import records, registry, rerun
from icllab.lab.evidence import evidence_of
from icllab.lab.judging import predicted


def test_labels_are_those_of_the_claim_and_not_of_the_record():
    """A figure of the record has the words of today; what was measured stays."""
    name = "descent/merged_heads_drop_once"
    dataset, vocabulary = records.predicted_data(name), registry.load(name).vocabulary
    stored = records.data(name).assign_attrs(names='{"fraction_step": ["t", "former words", "updates"]}')
    for labelled in (dataset, predicted(registry.load(name), stored)):
        assert json.loads(labelled.attrs["names"])["fraction_step"] == list(vocabulary.described()["fraction_step"])


def test_data_of_a_reduced_record_may_have_fewer_values_and_no_others():
    claim = registry.load("routing/blind_in_networks")
    dataset = records.data(claim.name, "small")
    assert claim.reduce is not None
    assert list(records.size_faults(claim, "small", None, dataset)) == []
    more = xr.concat([dataset, dataset.assign_coords(seed=dataset.seed + 1000)], "seed").assign_attrs(dataset.attrs)
    assert "values of seed" in "; ".join(records.size_faults(claim, "small", None, more))


def test_outputs_keep_the_order_of_the_grid(monkeypatch):
    """A Dataset sorts its axes; a measurement may know the values of its outputs by their places."""
    jobs = []

    def measure(job):
        jobs.append(job)
        raise InterruptedError

    monkeypatch.setattr(rerun, "measure", measure)
    evidence = evidence_of("routing/blind_detection")
    with pytest.raises(InterruptedError):
        rerun.rerun(evidence, 0.1, key=0)
    series = evidence.grids(None)[0].traced["series"]
    assert jobs[0].block["series"] == series != tuple(evidence.datasets[None]["series"].values)
    assert jobs[0].request.placement.precision == evidence.claim.precision
