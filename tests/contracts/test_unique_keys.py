"""A key that stands twice is refused in every kind of file.

The key is random, so that no list of known names can stand for the rule.
"""

import hashlib
import io
import json
import struct
import warnings
import zipfile

import numpy as np
import pytest
import xarray as xr

from icllab.arena import registry
from icllab.core.errors import IclError
from icllab.figures import labels
from icllab.lab import certificate, foreign, netcdf, records, registrations, results, stated
from icllab.models import pretrained
from icllab.training import checkpoints, logs


def twice(text, name):
    """JSON whose outermost object has a key twice, with two values."""
    assert text.startswith("{")
    return f'{{"{name}": 1, "{name}": 2{", " if len(text.strip()) > 2 else ""}{text[1:]}'


def files():
    """Writers of models, which need the extra [pretrained]."""
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    return pytest.importorskip("language_models")


def rewritten(path, name):
    path.write_text(twice(path.read_text(), name))
    return path


def config_json(at, name):
    writers = files()
    folder = writers.write_folder(at / "model", writers.TIED)
    rewritten(folder / "config.json", name)
    pretrained.load(folder)


def index_json(at, name):
    folder = files().write_folder(at / "model", files().TIED, shards=2)
    rewritten(folder / "model.safetensors.index.json", name)
    pretrained.load(folder)


def safetensors_header(at, name):
    """A tensor that stands twice, with one place in the file: the package takes the last."""
    writers = files()
    folder = writers.write_folder(at / "model", writers.TIED)
    file = folder / "model-0.safetensors"
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + size].rstrip().decode()
    entries = json.loads(header)
    entry = json.dumps(entries.pop("model.norm.weight"))
    entries = {key: value for key, value in entries.items() if key != "__metadata__"}
    body = f'{json.dumps(entries)[:-1]}, "{name}": {entry}, "{name}": {entry}}}'.encode()
    file.write_bytes(struct.pack("<Q", len(body)) + body + content[8 + size :])
    pretrained.load(folder)


def gguf_metadata(at, name):
    metadata = {f"general.{name}": 1, f"general.{name[:-1]}0": 2}
    file = files().write_gguf(at / "model.gguf", files().drawn(files().TIED), metadata=metadata)
    file.write_bytes(file.read_bytes().replace(f"general.{name[:-1]}0".encode(), f"general.{name}".encode()))
    pretrained.load(file)


def npz_configuration(at, name):
    file = files().write_glassllm(at / "model.npz", files().drawn(files().TIED))
    with np.load(file) as arrays:
        content = dict(arrays)
    content["__config__"] = np.array(twice(str(content["__config__"]), name))
    np.savez(file, **content)
    pretrained.load(file)


def npz_member(at, name):
    file = files().write_glassllm(at / "model.npz", files().drawn(files().TIED))
    with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the library, for writing it
        for _ in range(2):
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, np.ones(2, np.float32))
    pretrained.load(file)


def tokenizer_json(at, name):
    writers = files()
    folder = writers.write_folder(at / "model", writers.TIED)
    (folder / "tokenizer.json").write_text(twice('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', name))
    pretrained.tokenizer(folder)


def record_json(at, name):
    (at / "record.json").write_text(twice('{"smoke": {}}', name))
    stated.content(at / "record.json")


def certificate_file(at, name):
    (at / "c.json").write_text(twice(f'{{"schema": "{certificate.SCHEMA}"}}', name))
    certificate.read(at / "c.json")


def store_configuration(at, name):
    results.Store.open(at / "store", {"version": 1})
    rewritten(at / "store" / "configuration.json", name)
    results.Store.open(at / "store", {"version": 1})


def attribute_of_a_cell(at, name):
    store = results.Store.open(at / "store", {"version": 1})
    dataset = xr.Dataset({"x": 1.0}, attrs={"configuration": twice('{"version": 1}', name)})
    store.path({}).write_bytes(netcdf.to_bytes(dataset))
    store.read({})


def attribute_of_results(at, name):
    records.configuration(xr.Dataset(attrs={"configuration": twice("{}", name)}))


def attribute_of_a_figure(at, name):
    labels.named(xr.Dataset(attrs={"names": twice("{}", name)}), "loss")


def netcdf_from_elsewhere(at, name):
    stream = io.BytesIO()
    np.savez(stream, content=np.array(twice('{"data_vars": {}, "coords": {}, "attrs": {}}', name)))
    foreign._dataset(at / "results.nc", stream.getvalue())


def checkpoint_header(at, name):
    content = checkpoints.packed({"step": 1}, {"a": np.ones(1)}).partition(b"\n")[2].decode("latin-1")
    payload = twice(content, name).encode("latin-1")
    title = f"{checkpoints._MAGIC}, sha256 {hashlib.sha256(payload).hexdigest()}\n".encode()
    (at / "checkpoint.icl").write_bytes(title + payload)
    checkpoints.unpacked(at / "checkpoint.icl")


def array_of_a_checkpoint(at, name):
    class Pairs(dict):
        def items(self):
            return [(name, np.ones(1)), (name, np.zeros(1))]

        def values(self):
            return [np.ones(1), np.zeros(1)]

    (at / "checkpoint.icl").write_bytes(checkpoints.packed({"step": 1}, Pairs()))
    checkpoints.unpacked(at / "checkpoint.icl")


def log_notes(at, name):
    (at / "logs.json").write_text(twice("{}", name))
    logs._read(at / "logs.json")


def registered_theories(at, name):
    (at / "registered.json").write_text(twice("{}", name))
    registry.registered(next(iter(registry.tables())), at)


KINDS = (
    config_json,
    index_json,
    safetensors_header,
    gguf_metadata,
    npz_configuration,
    npz_member,
    tokenizer_json,
    record_json,
    certificate_file,
    store_configuration,
    attribute_of_a_cell,
    attribute_of_results,
    attribute_of_a_figure,
    netcdf_from_elsewhere,
    checkpoint_header,
    array_of_a_checkpoint,
    log_notes,
    registered_theories,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_key_that_stands_twice_is_refused_by_its_name(kind, tmp_path):
    name = "".join(np.random.default_rng().choice(list("abcdefghijklmnop"), 9))
    with pytest.raises(IclError) as refusal:
        kind(tmp_path, name)
    assert f"{name}' twice" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_users_list_of_folders_too(tmp_path, monkeypatch):
    monkeypatch.setenv("ICLLAB_CONFIG", str(tmp_path))
    (tmp_path / "claims.json").write_text(twice('{"folders": []}', "folder"))
    with pytest.raises(IclError, match="the key 'folder' twice"):
        registrations.added()
