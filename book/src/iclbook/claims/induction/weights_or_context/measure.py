"""Item-label networks trained on prompts of known classes, and asked what only weights or only the context can tell."""

import jax

from iclbook.claims.induction import _accuracy, _networks
from iclbook.claims.induction.weights_or_context.claim import SETTINGS
from icllab.core.grid import tabulated

VERSION = 1


def measure(point, *, key, trained_on=None, exchanged=()):
    """Accuracies of every seed in every setting; trained on bursty prompts, or on those of a named test set.

    ``exchanged``: two settings, each of which stands in the other's place.
    """
    instead = dict(zip(exchanged, exchanged[::-1], strict=True))
    sizes = {"classes": point.classes, "labels": point.label_count, "pairs": point.pairs, "no_repeats": False}

    def asked(seed, setting):
        begin = _networks.start(seed, key=key, **sizes)
        of_classes = _networks.task(key=begin.of_task, **sizes, **SETTINGS[instead.get(setting, setting)])
        training = _networks.TESTS[trained_on](of_classes) if trained_on else of_classes
        networks, last = {0: begin.network}, max(point.step)
        if last > 0:
            ends = {"loss": point.loss, "memory": 100, "steps": last}
            networks[last] = _accuracy.train_until(training, begin.network, key=begin.of_prompts, **ends).member(0)

        def accuracy(test_set, step):
            test = training if test_set == "training" else _networks.TESTS[test_set](of_classes)
            of_test = jax.random.fold_in(begin.of_tests, point.test_set.index(test_set))
            return {"accuracy": _accuracy.accuracy(networks[step], test, key=of_test, prompts=point.prompts)}

        return tabulated(accuracy, test_set=point.test_set, step=point.step)

    return tabulated(asked, seed=point.seed, setting=point.setting)
