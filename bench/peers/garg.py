"""Tasks, test sets and baselines of Garg et al. beside ours: moments of 100,000 prompts of either, and equal answers.

A difference of prompts is the largest over thirteen means, in standard errors. Answers are to the same prompts, in 20
dimensions with 40 examples. Curves are mean squared errors over prompts of each generator, divided as in their figures.
Their ``GDModel`` asks for a GPU; here ``cuda`` returns what it is called on.
"""

import functools
import importlib
import sys
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.tree import DecisionTreeRegressor

from icllab import algorithms
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import (
    Curriculum,
    GaussianInputs,
    GaussianWeights,
    LinearRegression,
    NetworkRegression,
    ShiftedQuery,
    SignLabels,
    SparseWeights,
    TreeRegression,
)

PEER = "dtsip/in-context-learning"
FILES = ("tasks.py", "samplers.py", "models.py", "eval.py", "base_models.py")
DIM, LENGTH, PROMPTS = 5, 6, 100_000  # of the moments
LASSO = "scikit-learn stops at a duality gap of 1e-4 of |y|^2, short of the minimum, which is what ours is"


def VERSION(checkout):
    """The commit."""
    from peers import commit

    return commit(checkout, *(f"src/{name}" for name in FILES))


def imported(checkout):
    """Their modules; stand-ins for what these import and do not need here, where it is not installed."""
    for name, attributes in {
        "munch": "Munch",
        "yaml": "",
        "pandas": "",
        "transformers": "GPT2Model GPT2Config",
    }.items():
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            for attribute in attributes.split():
                setattr(sys.modules[name], attribute, object)
    try:
        import xgboost  # noqa: F401
    except ImportError:
        sys.modules["xgboost"] = types.ModuleType("xgboost")
    sys.path.insert(0, str(checkout / "src"))
    try:
        return {name: importlib.import_module(name) for name in ("tasks", "samplers", "base_models", "models", "eval")}
    finally:
        sys.path.remove(str(checkout / "src"))


def statistics(x, y, n):
    """Thirteen numbers of every prompt, of the query after n examples and of the first example."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    query, first, label, other = x[:, n], x[:, 0], y[:, n], y[:, 0]
    product = np.sum(query * first, axis=1)
    columns = [label, label**2, label**4, np.abs(label), label * other, label**2 * other**2, label * other * product]
    columns += [product, product**2, np.sum(query**2, axis=1), query[:, 0] ** 4]
    columns += [np.mean(query * first > 0, axis=1), np.any(np.all(x[:, :n] == query[:, None], axis=2), axis=1)]
    return np.stack(columns)


def deviation(ours, theirs):
    """Largest difference of means over the last axis, in standard errors; equal constants differ by 0."""
    difference = np.abs(ours.mean(axis=-1) - theirs.mean(axis=-1))
    error = np.sqrt(ours.var(axis=-1) / ours.shape[-1] + theirs.var(axis=-1) / theirs.shape[-1])
    return float(np.max(difference / np.maximum(error, 1e-9)))


def drawn(task, prompts, seed=0):
    """Prompts of our task."""
    sample = eqx.filter_jit(lambda task, key: task.sample_many(prompts, key=key))
    return sample(task, jax.random.key(seed))


def moments(peer):
    """Name -> their labels and inputs, what they are called, our task, what it is called, the query's position."""
    torch, sampler = importlib.import_module("torch"), peer["samplers"].GaussianSampler(DIM)

    def labelled(name, xs, **options):
        return peer["tasks"].get_task_sampler(name, DIM, PROMPTS, **options)().evaluate(xs)

    def inputs(**options):
        return sampler.sample_xs(LENGTH + 1, PROMPTS, **options)

    def task(name, **options):
        return lambda: (xs := inputs(), labelled(name, xs, **options))

    def shifted(name, n):
        def draw():
            before, after = getattr(peer["eval"], f"gen_{name}")(sampler, LENGTH + 1, PROMPTS)
            xs = torch.cat((before[:, :n], after[:, n:]), dim=1)
            return xs, labelled("linear_regression", xs)

        return draw

    def curriculum():
        xs = inputs(n_dims_truncated=4)
        sparse = peer["tasks"].get_task_sampler("sparse_linear_regression", DIM, PROMPTS, sparsity=2)
        return xs, sparse(valid_coords=4).evaluate(xs)

    def ours(inputs=None, weights=None, noise=0.0):
        return LinearRegression(DIM, LENGTH, inputs or GaussianInputs(1.0), weights or GaussianWeights(1.0), noise)

    sparse, shrunk, last = SparseWeights(2), DIM / (DIM + 1), LENGTH
    grown = Curriculum(ours(weights=sparse), dim=4, positions=LENGTH + 1, step=jnp.asarray(0))
    yield "linear regression", task("linear_regression"), ours(), "LinearRegression.convention", last
    yield "sparse weights", task("sparse_linear_regression", sparsity=2), ours(weights=sparse), "SparseWeights", last
    yield "sparse weights, curriculum", curriculum, grown, "Curriculum of SparseWeights", last
    yield "linear classification", task("linear_classification"), SignLabels(ours()), "SignLabels", last
    noisy = task("noisy_linear_regression", noise_std=0.5)
    yield "noise", noisy, ours(noise=0.25), "LinearRegression(noise_variance=)", last
    noisy = task("noisy_linear_regression", noise_std=1, renormalize_ys=True)
    rescaled = ours(weights=GaussianWeights(shrunk), noise=shrunk)
    name = "LinearRegression, weights and noise over 1 + 1/d"
    yield "noise, labels rescaled to variance d", noisy, rescaled, name, last
    relu = task("relu_2nn_regression", hidden_layer_size=8)
    yield "ReLU networks", relu, NetworkRegression(DIM, LENGTH, hidden=8), "NetworkRegression", last
    yield "decision trees", task("decision_tree", depth=3), TreeRegression(DIM, LENGTH, depth=3), "TreeRegression", last
    threefold = task("linear_regression", scale=3)
    yield "labels times 3", threefold, ours(weights=GaussianWeights(9.0)), "GaussianWeights(9.0)", last
    kinds: Any = {"random_quadrants": "random_orthant", "opposite_quadrants": "opposite_orthant"}
    kinds |= {"orthogonal_train_test": "orthogonal", "overlapping_train_test": "repeated"}
    for name, shift in kinds.items():
        for n in (0, 3, 5):
            query = ShiftedQuery(GaussianInputs(1.0), shift, n)
            yield f"{name}, {n} examples", shifted(name, n), ours(query), f"ShiftedQuery({shift!r})", n


def prompts_of(peer, seed=0, count=4, dim=20, length=40):
    """Inputs, and labels of their sparse task, in float32 as their code has it."""
    torch = importlib.import_module("torch")
    torch.manual_seed(seed)
    xs = torch.randn(count, length + 1, dim)
    return xs, peer["tasks"].SparseLinearRegression(dim, count, sparsity=3).evaluate(xs)


def answers(predictor, xs, ys, dtype="float64"):
    """Our answers, in float64 unless said otherwise."""
    with jax.enable_x64(True):
        prompts = RegressionPrompt(jnp.asarray(xs.numpy(), dtype), jnp.asarray(ys.numpy(), dtype))
        predictor = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype) if eqx.is_inexact_array(leaf) else leaf, predictor
        )
        if predictor.traceable:
            return np.asarray(eqx.filter_jit(lambda p: jax.vmap(p)(prompts))(predictor))
        return np.stack([predictor(jax.tree.map(lambda leaf, i=i: leaf[i], prompts)) for i in range(len(xs))])


def networks(peer, optimizer, count):
    """Their network trained on each prefix and ours, from the same weights, in float64 and with all examples."""
    torch = importlib.import_module("torch")
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_: self
    start = peer["base_models"].NeuralNetwork(20, 100, 1).double()

    class Started(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = peer["base_models"].NeuralNetwork(20, 100, 1).double()
            self.net.load_state_dict(start.state_dict())

        def forward(self, x):
            return self.net(x)

    torch.set_default_dtype(torch.float64)
    try:
        xs, ys = (part.double() for part in prompts_of(peer, count=count, length=24))
        rate = {"adam": 5e-3, "sgd": 1e-3}[optimizer]
        options = {"opt_alg": optimizer, "batch_size": 100, "lr": rate, "num_steps": 100}
        theirs = peer["models"].GDModel(Started, {}, **options)(xs, ys).numpy()
    finally:
        torch.set_default_dtype(torch.float32)
    with jax.enable_x64(True):
        network = eqx.nn.MLP(20, "scalar", 100, 1, key=jax.random.key(0))
        values = [jnp.asarray(value.detach().numpy()) for value in start.state_dict().values()]
        where = [(layer, name) for layer in (0, 1) for name in ("weight", "bias")]
        network = eqx.tree_at(lambda n: [getattr(n.layers[layer], name) for layer, name in where], network, values)
        step = {"adam": optax.adam(rate), "sgd": optax.sgd(rate / count)}[optimizer]
        return theirs, answers(
            algorithms.TrainedNetwork(network, step, steps=100, batch=100, key=jax.random.key(0)), xs, ys
        )


def converged(lasso):
    """A Lasso of scikit-learn that converges, for their module."""

    class Converged(lasso):
        def __init__(self, alpha=1.0, fit_intercept=False, max_iter=0):
            super().__init__(alpha=alpha, fit_intercept=fit_intercept, max_iter=3_000_000, tol=1e-13)

        def fit(self, x, y):
            return super().fit(x.numpy().astype(float), y.numpy().astype(float))

    return Converged


def cases(checkout):
    """Everything that is compared."""
    peer = imported(checkout)
    torch: Any = importlib.import_module("torch")
    models: Any = peer["models"]
    fields = ("case", "theirs", "ours", "difference", "unit", "tolerance", "note")

    def case(*values):
        return dict(zip(fields, values, strict=True))

    torch.manual_seed(0)
    for name, draw, task, label, n in moments(peer):
        ours, (xs, ys) = drawn(task, PROMPTS), draw()
        difference = deviation(statistics(ours.x, ours.y, n), statistics(xs.numpy(), ys.numpy(), n))
        yield case(f"prompts: {name}", name, f"tasks.{label}", difference, "standard errors", 4.0, "")

    for name, spectrum in {"half_subspace": np.arange(20) < 10, "skewed": 1.0 / np.arange(1, 21)}.items():
        scale = peer["samplers"].sample_transformation(torch.tensor(spectrum, dtype=torch.float32), normalize=True)
        ours = np.asarray(GaussianInputs.rotated(spectrum**2.0, key=jax.random.key(0)).covariance, float)
        difference = np.max(np.abs(np.linalg.eigvalsh(ours) - np.linalg.eigvalsh((scale.T @ scale).numpy())))
        yield case(
            f"inputs: {name}", "sample_transformation", "tasks.GaussianInputs.rotated", difference, "absolute", 1e-4, ""
        )

    xs, ys = prompts_of(peer)
    repeated = torch.cat((xs[:, :20], xs[:, :21]), dim=1)  # queries that are examples
    pairs = {
        "averaging": (
            models.AveragingModel(),
            algorithms.GradientDescent(1.0, layers=1, dim=20, normalised=True, half=True),
        ),
        "least squares": (models.LeastSquaresModel("gelsd"), algorithms.LeastSquares()),
        "3 nearest neighbours": (models.NNModel(3), algorithms.NearestNeighbours(3)),
        "4, weighted by distance": (
            models.NNModel(4, "distance"),
            algorithms.NearestNeighbours(4, weighting="distance"),
        ),
    }
    for name, (theirs, ours) in pairs.items():
        for inputs, suffix in ((xs, ""), (repeated, ", repeated inputs")):
            if suffix and "distance" not in name:
                continue
            single = "distance" in name  # their weights are; of labels below 0.1 the unit is 1e-8
            prompts = (inputs, ys / 100) if single else (inputs.double(), ys.double())
            difference = np.max(np.abs(theirs(*prompts).numpy() - answers(ours, *prompts))) * (100 if single else 1)
            label = (
                "algorithms.GradientDescent, one step" if name == "averaging" else f"algorithms.{type(ours).__name__}"
            )
            yield case(name + suffix, type(theirs).__name__, label, difference, "absolute", 1e-6, "")

    small = (xs, ys / 100)  # their answers are float32, whose unit at |y| < 0.1 is 1e-8
    for alpha in (1.0, 0.1, 0.01, 0.001, 0.0001):
        ours = answers(algorithms.Lasso(alpha / 100), *small)
        theirs, original = models.LassoModel(alpha / 100), models.Lasso
        difference = np.max(np.abs(100 * (theirs(*small).numpy() - ours)))
        name = f"lasso, alpha={alpha:g}"
        yield case(name, "LassoModel", "algorithms.Lasso", difference, "absolute", 1e-4, LASSO)
        models.Lasso = converged(original)
        difference = np.max(np.abs(100 * (theirs(*small).numpy() - ours)))
        models.Lasso = original
        yield case(f"{name}, converged", "LassoModel, tol=1e-13", "algorithms.Lasso", difference, "absolute", 1e-6, "")

    for optimizer, count in (("adam", 1), ("sgd", 1), ("sgd", 2)):
        theirs, ours = networks(peer, optimizer, count)
        name, difference = f"trained network, {optimizer}, {count} prompts", np.max(np.abs(theirs - ours))
        yield case(name, "GDModel(NeuralNetwork)", "algorithms.TrainedNetwork", difference, "absolute", 1e-6, "")

    models.tree = types.SimpleNamespace(DecisionTreeRegressor=functools.partial(DecisionTreeRegressor, random_state=0))
    for depth in (4, None):
        ours = algorithms.FromSklearn(DecisionTreeRegressor(max_depth=depth, random_state=0))
        difference = np.max(np.abs(models.DecisionTreeModel(depth)(xs, ys).numpy() - answers(ours, xs, ys, "float32")))
        name = f"greedy tree, depth {depth}, both with random_state=0"
        yield case(name, "DecisionTreeModel", "algorithms.FromSklearn", difference, "absolute", 1e-6, "")
    if hasattr(models.xgb, "XGBRegressor"):
        ours = algorithms.FromSklearn(models.xgb.XGBRegressor())
        difference = np.max(
            np.abs(models.XGBoostModel()(xs[:1], ys[:1]).numpy() - answers(ours, xs[:1], ys[:1], "float32"))
        )
        yield case("XGBoost", "XGBoostModel", "algorithms.FromSklearn", difference, "absolute", 1e-6, "")

    yield from curves(peer, case)


def curves(peer, case, dim=20, length=40, prompts=512):
    """Mean errors at every length over prompts of each generator, in standard errors."""
    torch, models = importlib.import_module("torch"), peer["models"]
    linear = LinearRegression.convention("garg", dim=dim, length=length)
    sparse = eqx.tree_at(lambda task: task.weights, linear, SparseWeights(3))
    averaging = algorithms.GradientDescent(1.0, layers=1, dim=dim, normalised=True, half=True)
    rows = [
        ("linear_regression", linear, dim, models.NNModel(3), algorithms.NearestNeighbours(3), prompts),
        ("linear_regression", linear, dim, models.AveragingModel(), averaging, prompts),
        ("decision_tree", TreeRegression(dim, length), 1, models.NNModel(3), algorithms.NearestNeighbours(3), prompts),
        ("sparse_linear_regression", sparse, 3, models.LassoModel(0.01), algorithms.Lasso(0.01), 96),
    ]
    for name, task, divisor, theirs, ours, count in rows:
        xs = peer["samplers"].GaussianSampler(dim).sample_xs(length + 1, count)
        sampler = peer["tasks"].get_task_sampler(name, dim, count)
        of_theirs = peer["eval"].eval_batch(theirs, sampler, xs).numpy().T / divisor
        prompt = drawn(task, count, seed=1)
        errors = (answers(ours, *(torch.tensor(np.asarray(part)) for part in (prompt.x, prompt.y))) - prompt.y) ** 2
        difference = deviation(np.asarray(errors).T / divisor, of_theirs)
        label = f"algorithms.{type(ours).__name__}"
        yield case(
            f"curve of errors / {divisor}: {type(theirs).__name__}, {name}",
            type(theirs).__name__,
            label,
            difference,
            "standard errors",
            4.0,
            "",
        )
