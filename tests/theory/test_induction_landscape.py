"""The landscape against its formula written out, its derivatives against differences, its flow against known times."""

import numpy as np
import pytest

from icllab.theory import induction_landscape as landscape

ORIGIN = (0.0, 0.0, 0.0)


def points(count=200, seed=0):
    return np.random.default_rng(seed).normal(size=(4, count)) * np.array([[2.0], [3.0], [5.0], [2.0]])


@pytest.mark.parametrize(
    ("point", "pairs", "labels", "loss", "gradient"),
    [
        (ORIGIN, 8, 32, 3.465735902800, (0, 0, -0.0441176471)),
        ((0, 0, 20), 8, 32, 2.734417120495, (0, -0.1185360508, -0.0282673678)),
        ((2, 3, 4), 8, 32, 2.715437924461, (-0.4696641888, -0.3011536895, -0.1828782704)),
        ((3, 6, 20), 8, 32, 0.000002456930, (-9.0014369e-6, -5.2668789e-6, -2.0080237e-6)),
        ((-1, -2, -3), 8, 32, 3.587090570118, (-0.0127106965, 0.0066475985, -0.0413576413)),
        ((0, 0, 50), 8, 8, 2.079441541680, (0, -0.2859477124, 0)),
    ],
)
def test_known_points(point, pairs, labels, loss, gradient):
    np.testing.assert_allclose(landscape.loss(*point, pairs=pairs, labels=labels), loss, atol=1e-12)
    np.testing.assert_allclose(landscape.gradient(*point, pairs=pairs, labels=labels), gradient, atol=1e-10)


def test_the_first_layer():
    """It is a softmax over N + 1 tokens, and leak-corrected exactly nothing without training."""
    beta = np.array([-800.0, -2.0, 0.0, 1e-8, 3.0, 800.0])
    plain = landscape.previous_token_attention(beta, pairs=8)
    np.testing.assert_allclose(plain[1:5], np.exp(beta[1:5]) / (np.exp(beta[1:5]) + 8), rtol=1e-15)
    np.testing.assert_allclose(plain[[0, 5]], [0, 1], atol=1e-300)
    corrected = landscape.previous_token_attention(beta, pairs=8, leak_corrected=True)
    np.testing.assert_allclose(corrected, (plain - 1 / 9) * 9 / 8, atol=1e-15)
    np.testing.assert_allclose(corrected[3], 1e-8 / 9, rtol=1e-7)
    assert corrected[2] == 0


@pytest.mark.parametrize("leak_corrected", [False, True])
@pytest.mark.parametrize(("pairs", "labels"), [(8, 32), (4, 4), (2, 7)])
def test_the_loss_is_that_of_a_softmax_of_a_softmax(pairs, labels, leak_corrected):
    """Token by token: attention of the last position, the label vector it reads, and the classifier's logits."""
    for beta, alpha, xi, beta2 in points(20).T:
        chance = 1.0 if leak_corrected else 0.0
        y = (np.exp(beta) - chance) / (np.exp(beta) + pairs)
        scores = np.zeros(2 * pairs + 1)
        scores[1::2] = beta2
        scores[1] += alpha * y
        attention = np.exp(scores) / np.exp(scores).sum()
        logits = np.zeros(labels)
        logits[:pairs] = xi * attention[1::2]
        expected = np.log(np.exp(logits).sum()) - logits[0]
        found = landscape.loss(beta, alpha, xi, beta2=beta2, pairs=pairs, labels=labels, leak_corrected=leak_corrected)
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("leak_corrected", [False, True])
@pytest.mark.parametrize(("pairs", "labels"), [(8, 32), (4, 4), (1, 3)])
def test_derivatives_are_those_of_differences(pairs, labels, leak_corrected):
    fields = {"pairs": pairs, "labels": labels, "leak_corrected": leak_corrected}
    w = points()

    def of(function, w):
        return function(w[0], w[1], w[2], beta2=w[3], **fields)

    gradient, hessian = of(landscape.gradient, w), of(landscape.hessian, w)
    np.testing.assert_allclose(hessian, np.swapaxes(hessian, 1, 2), atol=1e-14)
    for i in range(4):
        change = 1e-5 * np.eye(4)[:, [i]]
        difference = (of(landscape.loss, w + change) - of(landscape.loss, w - change)) / 2e-5
        np.testing.assert_allclose(gradient[:, i], difference, atol=1e-8)
        difference = (of(landscape.gradient, w + change) - of(landscape.gradient, w - change)) / 2e-5
        np.testing.assert_allclose(hessian[:, :, i], difference, atol=1e-8)
    np.testing.assert_array_equal(
        landscape.gradient(*w[:3], beta2=0.0, **fields)[:, :3], landscape.gradient(*w[:3], **fields)
    )


def test_the_origin():
    """Its gradient is weak and along xi; its Hessian is known."""
    for n, labels in [(8, 32), (4, 16), (3, 4)]:
        gradient = landscape.gradient(*ORIGIN, pairs=n, labels=labels)
        np.testing.assert_allclose(gradient, [0, 0, -(labels - n) / (labels * (2 * n + 1))], rtol=1e-13)
        hessian = landscape.hessian(*ORIGIN, pairs=n, labels=labels)
        m = 2 * n + 1
        expected = np.zeros((3, 3))
        expected[1, 2] = expected[2, 1] = -((n - 1) * m + 2 * n * (labels - n)) / (m**2 * labels * (n + 1))
        expected[2, 2] = n * (labels - n) / (labels * m) ** 2
        np.testing.assert_allclose(hessian, expected, atol=1e-15)


@pytest.mark.parametrize(("pairs", "rate"), [(8, 0.005719), (4, 1 / 60)])
def test_with_as_many_labels_as_pairs_the_origin_is_a_strict_saddle(pairs, rate):
    np.testing.assert_array_equal(landscape.gradient(*ORIGIN, pairs=pairs, labels=pairs), np.zeros(3))
    np.testing.assert_allclose(landscape.escape_rate(pairs=pairs), rate, rtol=1e-4)
    for beta, leak_corrected in [(0.0, False), (2.0, False), (2.0, True), (-3.0, True)]:
        hessian = landscape.hessian(beta, 0, 0, pairs=pairs, labels=pairs, leak_corrected=leak_corrected)
        h = abs(landscape.escape_rate(pairs=pairs, beta=beta, leak_corrected=leak_corrected))
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian), [-h, 0, h], atol=1e-15)
    assert landscape.escape_rate(pairs=pairs, leak_corrected=True) == 0
    # Elsewhere on the plateau the gradient is not zero.
    assert landscape.gradient(0, 0, 1, pairs=pairs, labels=pairs)[1] < 0
    assert landscape.gradient(0, 1, 0, pairs=pairs, labels=pairs)[2] < 0


def test_without_a_match_the_loss_falls_to_that_of_any_label_of_the_context():
    xi = np.array([0.0, 10.0, 100.0, 1000.0])
    loss = landscape.loss(0.0, 0.0, xi, pairs=8, labels=32)
    np.testing.assert_allclose(loss, np.log(8 + 24 * np.exp(-xi / 17)), rtol=1e-14)
    np.testing.assert_allclose(loss[-1], np.log(8), rtol=1e-14)


def test_extreme_parameters_are_numbers():
    far = np.array([-1e3, 1e3])
    for beta, alpha, xi, beta2 in np.stack(np.meshgrid(far, far, far, far), -1).reshape(-1, 4):
        for leak_corrected in (False, True):
            fields = {"pairs": 8, "labels": 8, "beta2": beta2, "leak_corrected": leak_corrected}
            assert np.isfinite(landscape.loss(beta, alpha, xi, **fields))
            assert np.isfinite(landscape.gradient(beta, alpha, xi, **fields)).all()
            assert np.isfinite(landscape.hessian(beta, alpha, xi, **fields)).all()


@pytest.mark.parametrize(
    ("pairs", "labels", "start", "leak_corrected", "times"),
    [
        (8, 32, ORIGIN, False, (97.4, 98.2, 101.4)),
        (8, 32, (0.01,) * 3, False, (96.2, 97.1, 100.3)),
        (8, 9, (0.01,) * 3, False, (231.0, 234.3, 239.1)),
        (8, 8, (0.01,) * 3, False, (805.3, 810.0, 815.3)),
        (8, 8, (-0.01,) * 3, False, (930.6, 1305.4, 2802.4)),
        (2, 2, (0.01,) * 3, False, (134.1, 145.2, 160.7)),
        (8, 32, (0.01,) * 3, True, (185.2, 185.8, 187.1)),
    ],
)
def test_times_of_the_cliff(pairs, labels, start, leak_corrected, times):
    found = landscape.flow(start, pairs=pairs, labels=labels, time=3000, leak_corrected=leak_corrected)
    np.testing.assert_allclose(list(found.crossings.values()), times, atol=0.06)
    assert np.all(np.diff(found.loss) < 1e-9)
    # In the solver's steps too the loss is where the crossings say.
    for share, time in found.crossings.items():
        np.testing.assert_allclose(np.interp(time, found.time, found.loss), share * np.log(pairs), atol=0.05)


def test_the_order_of_events_is_xi_and_then_beta_and_alpha():
    found = landscape.flow(ORIGIN, pairs=8, labels=32, time=150)
    beta, alpha, _ = found.parameters[np.argmax(found.parameters[:, 2] > found.parameters[-1, 2] / 2)]
    assert beta < 0.25 * found.parameters[-1, 0]
    assert alpha < 0.25 * found.parameters[-1, 1]


def test_the_saddle_delays_and_does_not_bar():
    """From a start a hundred times nearer the escape takes ln(100)/h longer; from the saddle itself, for ever."""
    near, nearer = (landscape.flow((0, d, d), pairs=4, labels=4, time=5000).crossings[0.5] for d in (1e-3, 1e-5))
    np.testing.assert_allclose(nearer - near, np.log(100) / landscape.escape_rate(pairs=4), rtol=2e-3)
    stays = landscape.flow(ORIGIN, pairs=4, labels=4, time=5000)
    assert all(np.isnan(time) for time in stays.crossings.values())
    np.testing.assert_array_equal(stays.parameters, np.zeros_like(stays.parameters))


def test_the_other_branch_is_read_with_the_opposite_sign():
    end = landscape.flow((-0.01,) * 3, pairs=8, labels=8, time=4000).parameters[-1]
    assert end[1] < -5
    assert end[2] < -50


def test_beta2_flows_if_it_is_started_and_a_rate_of_zero_holds():
    found = landscape.flow((0, 0, 0, 0), pairs=4, labels=16, time=100, rates=(0, 1, 1, 1))
    assert found.parameters.shape[1] == 4
    np.testing.assert_array_equal(found.parameters[:, 0], 0)
    assert found.parameters[-1, 3] > 0.1


@pytest.mark.parametrize("leak_corrected", [False, True])
def test_the_fisher_matrix_is_the_curvature_of_the_divergence(leak_corrected):
    """Of the answers, written out, by second differences; with L labels of which N are in the context."""
    pairs, labels, h = 4, 16, 1e-3

    def answers(w):
        beta, alpha, xi, beta2 = w
        y = (np.exp(beta) - leak_corrected) / (np.exp(beta) + pairs)
        weights = np.exp(np.array([alpha * y + beta2, beta2, 0.0]))
        weights /= np.array([1, pairs - 1, pairs + 1]) @ weights
        logits = np.concatenate([xi * weights[:1], np.full(pairs - 1, xi * weights[1]), np.zeros(labels - pairs)])
        return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()

    def divergence(at, w):
        p = answers(at)
        return p @ (np.log(p) - np.log(answers(w)))

    def mixed(at, a, b):
        ends = [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)]
        return sum(sign * divergence(at, at + p * a + q * b) for p, q, sign in ends) / (4 * h * h)

    for point in ((0.5, 1.0, 3.0, 0.3), (2.0, 2.5, 4.0, 0.0)):
        at, unit = np.array(point), h * np.eye(4)
        found = np.array([[mixed(at, a, b) for a in unit] for b in unit])
        how = {"pairs": pairs, "labels": labels, "leak_corrected": leak_corrected}
        fisher = landscape.fisher_information(*at[:3], beta2=at[3], **how)
        np.testing.assert_allclose(fisher, found, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(fisher[:3, :3], landscape.fisher_information(*at[:3], **how))


def test_the_answers_depend_on_two_numbers_and_at_the_origin_on_one():
    w = points()[:3]
    spectrum = np.linalg.eigvalsh(landscape.fisher_information(*w, pairs=8, labels=32))
    assert (abs(spectrum[:, 0]) <= 1e-12 * np.maximum(spectrum[:, 2], 1e-6)).all()
    origin = landscape.fisher_information(*ORIGIN, pairs=8, labels=32)
    np.testing.assert_allclose(origin, np.diag([0, 0, 8 * 24 / (32 * 17) ** 2]), atol=1e-15)
