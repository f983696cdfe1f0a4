"""The classifier is its formula, and a classifier without layers a matrix."""

import equinox as eqx
import jax
import numpy as np

from icllab.models import Classifier


def test_the_formula(getkey):
    with jax.enable_x64(True):
        classifier = eqx.filter_jit(lambda key: Classifier(5, 3, depth=2, key=key))(getkey())
        x = jax.random.normal(getkey(), (5,))
        h, seen = np.asarray(x), {}

        def record(name, value):
            seen[name] = value
            return value

        for i in (0, 1):
            h = np.maximum(0, h @ np.asarray(classifier.weights[i]) + float(classifier.biases[i]))
        found = classifier(x, record)
        np.testing.assert_allclose(found, (h @ np.asarray(classifier.readout))[None], rtol=1e-13)
        np.testing.assert_allclose(seen["hidden2"], h, rtol=1e-13)
        assert set(seen) == {"hidden1", "hidden2"}
        matrix = Classifier(5, 3, depth=0, key=getkey())
        np.testing.assert_allclose(matrix(x)[0], x @ matrix.readout, rtol=1e-13)
