"""A network is opened by its name; what is no network is refused in one line, and no pickle is opened."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cyclopts import App

import icllab as icl
from icllab import algorithms, models, tasks
from icllab.cli.parameters import NETWORK, NetworkOptions
from icllab.core.errors import InputError
from icllab.lab.networks import require_answers

TASK = tasks.LinearRegression.convention("raventos", dim=3, length=4)
FILE = """
from pathlib import Path
import jax.numpy as jnp
from icllab import algorithms

ridge = algorithms.Ridge(0.25)
number = 3

def zero(prompt):
    return jnp.zeros(prompt.positions)

def load(path="weights"):
    return algorithms.Ridge(float(Path(path).read_text()) if path != "weights" else 0.5)

def build():
    return zero

import functools
part = functools.partial(algorithms.Ridge, 2.0)

def nested():
    return build

def nothing():
    pass

def fails():
    raise OSError("no weights")

def of_path(path):
    return path

def of_text(where: str):
    return where

def two(x, y):
    return x

def any_number(*prompts):
    return prompts

def keyword(*, prompt):
    return prompt
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


def refused(message, *arguments, **options):
    with pytest.raises(InputError) as caught:
        icl.network(*arguments, **options)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_parameters_of_a_function_tell_a_predictor_from_a_builder(file):
    prompt = TASK.sample(key=jax.random.key(0))
    ridge = icl.network("mine.py:ridge")
    assert isinstance(ridge, algorithms.Ridge)
    assert icl.network(ridge) is ridge
    assert icl.network("mine.py:zero").__name__ == icl.network("mine.py:build").__name__ == "zero"
    np.testing.assert_array_equal(icl.network("mine.py:zero")(prompt), 0)
    assert float(icl.network("mine.py:load").ridge) == 0.5
    assert float(icl.network("mine.py:part").ridge) == 2.0
    assert icl.network("mine:load")(prompt).shape == (5,)
    for name, message in {
        "number": "mine.py:number: expected a predictor or a torch.nn.Module, or a function without arguments that",
        "nested": "mine.py:nested(): expected a predictor or a torch.nn.Module, got 'another function without argum",
        "nothing": "mine.py:nothing(): expected a predictor or a torch.nn.Module, got 'NoneType'",
        "fails": "line 28: expected the network of mine.py:fails, got OSError: no weights",
        "of_path": "expected a predictor, whose one argument is a prompt, or a function without required arguments",
        "of_text": "got 'a function of (where: str)'",
        "two": "got 'a function of (x, y)'",
        "any_number": "got 'a function of (*prompts)'",
        "keyword": "got 'a function of (*, prompt)'",
        "laod": "unknown name in mine.py: 'laod'; did you mean 'load'?",
        "Path": "got 'the class Path'",
    }.items():
        refused(message, f"mine.py:{name}")
    refused("name: expected file.py:name, with a name in the file, got 'mine.py'", "mine.py")
    refused("path: expected a folder or a file that exists, got 'nowhere'", "nowhere")


def test_a_pickle_is_not_opened_and_the_line_shows_the_way(file):
    for suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".PT"):
        (file.parent / f"weights{suffix}").write_bytes(b"\x80\x04")
        refused("--checkpoints 'run/*.pt' --load file.py:load, or icl.checkpoints", f"weights{suffix}")


def test_a_torch_module_is_wrapped(file):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 1)
    assert icl.network(module).module is module
    (file.parent / "net.py").write_text(
        "import torch\nfrom mine import ridge\ndef load():\n    return torch.nn.Linear(3, 1)"
    )
    assert isinstance(icl.network("net.py:load"), models.FromTorch)


def test_a_store_and_the_function_that_builds_the_predictor(file, tmp_path):
    run = icl.fit(
        algorithms.Ridge(0.5),
        TASK,
        steps=2,
        batch=4,
        key=jax.random.key(0),
        optimizer=optax.sgd(0.1),
        store=tmp_path / "run",
    )
    opened = icl.network("mine.py:load", store=tmp_path / "run")
    assert float(opened.ridge) == float(run.predictor.ridge) != 0.5
    refused("name: expected file.py:build, the function that builds the predictor", "run", store=tmp_path / "run")
    refused("mine.py:ridge: expected a function without required arguments", "mine.py:ridge", store=tmp_path / "run")
    refused("mine.py:zero: expected a function without required arguments", "mine.py:zero", store=tmp_path / "run")
    refused("expected a finished training run", "mine.py:load", store=tmp_path)


def state(vocabulary=11, places=6, width=8, layers=2):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32) * 0.2

    tensors = {"wte.weight": draw(vocabulary, width), "wpe.weight": draw(places, width)}
    for i in range(layers):
        for name, inner, outer in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 12),
            ("mlp.c_proj", 12, width),
        ):
            tensors |= {f"h.{i}.{name}.weight": draw(inner, outer), f"h.{i}.{name}.bias": draw(outer)}
        for norm in ("ln_1", "ln_2"):
            tensors |= {f"h.{i}.{norm}.{part}": draw(width) for part in ("weight", "bias")}
    return tensors | {"ln_f.weight": draw(width), "ln_f.bias": draw(width)}


def test_a_state_with_its_family_is_the_model_of_its_folder(tmp_path):
    """The shapes give the sizes; the folder states them, and both are one function."""
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file(state(), tmp_path / "model.safetensors")
    np.savez(tmp_path / "state.npz", **{f"transformer.{name}": array for name, array in state().items()})
    sizes = '"vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 2, "n_head": 4, "n_inner": 12'
    folder = tmp_path / "folder"
    folder.mkdir()
    numpy.save_file(state(), folder / "model.safetensors")
    (folder / "config.json").write_text(f'{{"model_type": "gpt2", {sizes}}}')
    whole = icl.network(str(folder))
    prompt = icl.core.prompt.TokenPrompt(jnp.array([1, 4, 2, 9, 0]))
    for name in ("model.safetensors", "state.npz"):
        part = icl.network(tmp_path / name, family="gpt2", heads=4)
        np.testing.assert_array_equal(part(prompt), whole(prompt))
    path = str(tmp_path / "model.safetensors")
    refused("model.safetensors: expected the family of a state, got None; family='gpt2', heads=12", path)
    refused(
        "family and heads: expected both, with the path of a state, or none, got ('gpt2', None)", path, family="gpt2"
    )
    refused("n_head: expected a divisor of the width 8, got 3", path, family="gpt2", heads=3)
    refused("unknown family of a state: 'llama'; known: gpt2", path, family="llama", heads=4)
    refused("expected a .safetensors or .npz file that exists", str(folder), family="gpt2", heads=4)
    np.savez(tmp_path / "other.npz", weight=np.zeros((3, 3), np.float32))
    refused("other.npz: expected matrices wte.weight", str(tmp_path / "other.npz"), family="gpt2", heads=4)
    turned = {name: array.T if "c_attn.weight" in name else array for name, array in state().items()}
    np.savez(tmp_path / "turned.npz", **turned)
    refused("c_attn.weight: expected a tensor of shape (8, 24)", str(tmp_path / "turned.npz"), family="gpt2", heads=4)


def test_checkpoints_by_the_last_number_in_the_name(file):
    run = file.parent / "run"
    run.mkdir()
    for name, value in (("step_1000.txt", 3), ("epoch2_step_000200.txt", 2), ("step_30", 1)):
        (run / name).write_text(str(value))
    networks = icl.checkpoints("run/*step*", "mine.py:load")
    assert {step: float(network.ridge) for step, network in networks.items()} == {30: 1.0, 200: 2.0, 1000: 3.0}
    assert list(networks) == [30, 200, 1000]
    paths = []

    def load(path):
        paths.append(path)
        return algorithms.Ridge(1.0)

    icl.checkpoints("run/step*", load)
    assert paths == [str(run / "step_30"), str(run / "step_1000.txt")]
    (run / "again_30.txt").write_text("4")
    (run / "final.h5").write_text("5")
    for pattern, function, message in (
        (
            "run/*30*",
            load,
            "pattern: expected one file for each step, got 'run/again_30.txt and run/step_30 of step 30'",
        ),
        ("run/final*", load, "run/final.h5: expected a number in the name, the step, got 'final.h5'"),
        ("run/none*", load, "pattern: expected a pattern of at least one file, got 'run/none*'"),
        (
            "run/step*",
            "mine.py:fails",
            "expected the network of run/step_30, got TypeError: fails() takes 0 positional",
        ),
        (
            "run/step*",
            lambda path: 1 / 0,
            "test_networks.py, line",
        ),
        ("run/step*", lambda path: {}, "load('run/step_30'): expected a predictor or a torch.nn.Module, got 'dict'"),
        ("run/step*", 3, "load: expected a function of a path, or its name file.py:load, got 3"),
    ):
        with pytest.raises(InputError) as caught:
            icl.checkpoints(pattern, function)
        assert message in str(caught.value)


class OfFive(eqx.Module):
    """A network of inputs of five dimensions that declares nothing."""

    weight: jax.Array

    def __call__(self, prompt):
        return prompt.x @ self.weight


def test_a_network_of_another_dimension_is_told_by_it(getkey):
    five, eight = (tasks.LinearRegression.convention("raventos", dim=dim, length=4) for dim in (5, 8))

    def on_host(prompt):
        return np.asarray(prompt.x) @ np.ones(5, np.float32)

    def declared_on_host(prompt):
        return on_host(prompt)

    declared_on_host.traceable = False
    for network in (
        OfFive(jnp.ones(5)),
        on_host,
        declared_on_host,
        models.LinearAttention.lu(dim=5, std=0.1, key=getkey()),
    ):
        require_answers(network, five)
        with pytest.raises(InputError, match=r"dim of the task: expected 5, the input dimension of the network, got 8"):
            require_answers(network, eight)
    for network, message in (
        (lambda prompt: prompt.x, "prediction: expected (9,), got (9, 8)"),
        (
            lambda prompt: prompt.tokens,
            "network: expected an answer to a prompt of the task (x (9, 8), y (9,)), got Attri",
        ),
    ):
        with pytest.raises(InputError) as caught:
            require_answers(network, tasks.LinearRegression.convention("raventos", dim=8, length=8))
        assert message in str(caught.value)


def test_the_options_of_a_command(file):
    app, opened = App(), []

    @app.default
    def command(name: str, *, options: NetworkOptions = NETWORK) -> None:
        opened.append((options.opened(name), options.checkpoint_networks()))

    (file.parent / "run_7.txt").write_text("2")
    words = ["mine.py:ridge", "--checkpoints", "run_*.txt", "--load", "mine.py:load"]
    app(words, result_action="return_value")
    network, networks = opened[0]
    assert isinstance(network, algorithms.Ridge)
    assert float(networks[7].ridge) == 2
    app(["mine.py:zero"], result_action="return_value")
    assert opened[1][1] == {}
    for extra, message in (
        (["--checkpoints", "run_*.txt"], "--checkpoints and --load: expected both or neither"),
        (["--as", "gpt2", "--heads", "4"], "family and heads: expected both, with the path of a state"),
        (["--store", "run"], "expected"),
    ):
        with pytest.raises(InputError, match=message):
            app(["mine.py:build", *extra], result_action="return_value")
