"""The losses of a training run as the page reads them are those of the run; what is unsound is refused."""

import hashlib
import json
import os

import numpy as np
import pytest
from training.test_checkpoints import trained

from icllab.core.errors import InputError
from icllab.page import training_runs
from icllab.page.index import Index


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two members, finished, with held-out losses; and where its store is."""
    root = tmp_path_factory.mktemp("out") / "mine" / "net"
    return trained(root, 12), root


@pytest.fixture
def store(run, tmp_path):
    """A copy of the store, for one test to change."""
    import shutil

    return shutil.copytree(run[1], tmp_path / "net")


def test_a_finished_run_has_its_own_losses(run):
    done, root = run
    found = training_runs.losses(root)
    loss = done.dataset["training_loss"].mean("position")
    assert found.finished
    assert found.steps == done.dataset["step"].values.tolist()
    np.testing.assert_allclose(found.members, loss.values, rtol=1e-6)
    np.testing.assert_allclose(found.mean, loss.mean("member").values, rtol=1e-6)
    held = done.dataset["held_out_loss"].mean(["member", "position"])
    np.testing.assert_allclose(found.held_out[1], held.values, rtol=1e-6)


def test_a_run_under_way_has_those_of_its_newest_checkpoint(run, store):
    whole = training_runs.losses(store)
    (store / "finished.icl").unlink()
    found = training_runs.losses(store)
    assert (found.finished, found.step) == (False, 12)
    before = [step for step in whole.steps if step < 12]
    assert found.steps == before
    np.testing.assert_allclose(found.mean, whole.mean[: len(before)], rtol=1e-6)
    np.testing.assert_allclose(found.held_out[1][: len(before)], whole.held_out[1][: len(before)], rtol=1e-6)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(store):
    (store / "finished.icl").unlink()
    sound = training_runs.losses(store)
    (store / "checkpoint-000000000099.icl").write_bytes(b"icl-lab checkpoint, sha256 torn")
    assert training_runs.losses(store).step == sound.step


def signed(described, rest=b""):
    """A file whose checksum is right, whatever it holds."""
    payload = described + rest
    return f"icl-lab checkpoint, sha256 {hashlib.sha256(payload).hexdigest()}\n".encode() + payload


def array(**change):
    entry = {"name": "records.losses.step", "dtype": "<i8", "shape": [1]} | change
    return json.dumps({"step": 1, "arrays": [entry]}).encode() + b"\n"


HOSTILE = {
    "empty": b"",
    "another file": b"GIF89a" * 100,
    "no JSON": signed(b"no\n"),
    "a list": signed(b"[]\n"),
    "deep": signed(b"[" * 100_000 + b"\n"),
    "no arrays": signed(b"{}\n"),
    "arrays that are not there": signed(array()),
    "longer than memory": signed(array(shape=[2**62, 2**62]), b"12345678"),
    "negative": signed(array(shape=[-1]), b"12345678"),
    "objects": signed(array(dtype="O"), b"12345678"),
    "a structure": signed(array(dtype="<i8,<i8"), b"1234567812345678"),
    "others": signed(array(name="state.w"), b"12345678"),
    "no table": signed(array(), b"12345678"),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "checkpoint-000000000001.icl").write_bytes(content)
    with pytest.raises(InputError, match="expected") as refused:
        training_runs.losses(tmp_path)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_the_page_shows_it_and_sees_when_it_has_changed(run, store, opened):
    page = opened(store.parent)
    (one,) = page.app.app.state.desk.state()["training"]
    assert one["label"] == "net"
    answer = page.get(f"/api/training/{one['id']}").json()
    assert answer["finished"]
    assert len(answer["members"]) == run[0].size
    assert page.get("/api/compare", params={"first": one["id"], "second": one["id"]}).status_code == 400
    (store / "finished.icl").unlink()
    os.utime(store, ns=(2 * 10**18, 2 * 10**18))
    (again,) = page.app.app.state.desk.state()["training"]
    assert again["updated"] > one["updated"]
    for path in store.glob("checkpoint-*.icl"):
        path.write_bytes(path.read_bytes()[:-1])
    refused = page.get(f"/api/training/{one['id']}")
    assert (refused.status_code, "checksum" in refused.json()["error"]) == (400, True)


def test_an_index_opens_only_what_has_changed(finished, tmp_path, monkeypatch):
    """Results, not training runs, whose files are never opened for it."""
    import shutil

    for i in range(3):
        shutil.copytree(finished, tmp_path / f"{i}")
    index, opened = Index(tmp_path), []
    real = Index._read
    monkeypatch.setattr(Index, "_read", lambda self, path, kind: opened.append(path) or real(self, path, kind))
    assert len(index.refresh()) == len(opened) == 3
    index.refresh()
    assert len(opened) == 3
    path = tmp_path / "1" / "claims" / "steady" / "smoke" / "verdict.json"
    path.write_text(path.read_text().replace("holds", "fails"))
    found = index.refresh()
    assert opened[3:] == [path.parent]
    assert sorted(one.verdict for one in found.values()) == ["fails", "holds", "holds"]
    assert len({one.id for one in found.values()}) == 3
