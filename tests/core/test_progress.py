"""The one line of progress: what it says, who sees it, and that nobody else does."""

import io
import sys
import threading
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from icllab.core import progress
from icllab.diagnostics import HMC, NUTS, SGLD, SMC, LocalPosterior, Quadrature, free_energy, learning_coefficient


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    # pytest puts its own stderr back before a test begins.
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream, modules=sys.modules))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    return stream


@pytest.fixture
def clock(monkeypatch):
    now = types.SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


def looks(stream):
    """The lines that were seen, one after the other in one place."""
    return [line.partition("\x1b")[0] for line in stream.getvalue().split("\r") if line]


def test_a_look_says_how_much_is_done_the_time_left_and_the_number(terminal, clock):
    with progress.shown("training"):
        progress.stage("", 100, "steps")
        clock.seconds = 7.0
        progress.move_to(0)  # compiled
        clock.seconds = 9.0
        progress.move_to(20, "loss 0.5")
        clock.seconds = 17.0
        progress.advance(80, "loss 0.25")
    assert looks(terminal)[-3:] == [
        "training [####----------------] 20 of 100 steps, 8 s left, loss 0.5",
        "training [####################] 100 of 100 steps, 10 s, loss 0.25",
        "training [####################] 100 of 100 steps, 17 s, loss 0.25",
    ]
    assert terminal.getvalue().endswith("\n")


def test_units_that_were_there_are_no_pace(terminal, clock):
    with progress.shown("run"):
        progress.stage("", 100, "cells", done=90)
        clock.seconds = 5.0
        progress.move_to(95)
    assert "95 of 100 cells, 5 s left" in looks(terminal)[-2]


def test_a_line_is_cut_to_the_terminal(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    with progress.shown("x" * 50):
        progress.stage("", 3, "steps")
    assert max(map(len, looks(terminal))) == 29


def test_what_ends_at_once_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 100.0)
    with progress.shown("quick"):
        progress.stage("", 3, "steps")
        progress.advance(3)
    assert terminal.getvalue() == ""


def test_nobody_looks_at_a_pipe(capfd):
    with progress.shown("training"):
        progress.stage("", 3, "steps")
        progress.advance(3)
    assert capfd.readouterr() == ("", "")


def test_what_lasts_is_announced_once_where_nobody_looks(capfd, clock):
    """Six parts of half a minute each are one line; parts of a second are none."""
    with progress.shown("coefficient"):
        for i in range(6):
            with progress.part("state", i, 6):
                progress.stage("chains", 60, "moves")
                clock.seconds += 1.0
                progress.move_to(0)
                for done in (1, 2, 60):
                    clock.seconds += 0.5
                    progress.move_to(done)
        progress.stage("short", 10, "moves")
        for _ in range(10):
            clock.seconds += 1.0
            progress.advance()
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "coefficient, state 1 of 6, chains (60 moves): about 30 s, 3 min 00 s for all 6\n"


def test_what_is_hidden_is_not_announced(capfd, clock):
    with progress.shown("coefficient", False), progress.shown("inner"):
        progress.stage("chains", 60, "moves")
        progress.move_to(0)
        clock.seconds = 5.0
        progress.move_to(1)
    assert capfd.readouterr() == ("", "")


def test_a_loop_in_stretches_makes_every_turn_once():
    turns = []

    def advance(carry, first, end):
        turns.extend(range(first, end))
        return carry + (end - first)

    assert progress.in_stretches(advance, 0, 1000) == 1000
    assert turns == list(range(1000))


def test_no_stretch_lasts_a_second(monkeypatch):
    """Of turns of 10 ms each, by a clock that they move."""
    now, stretches = types.SimpleNamespace(seconds=0.0), []
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now.seconds)

    def advance(carry, first, end):
        now.seconds += (end - first) / 100
        stretches.append((end - first) / 100)
        return carry

    progress.in_stretches(advance, 0, 1000)
    assert sum(stretches) == pytest.approx(10)
    assert max(stretches) < 1
    assert len(stretches) < 100


def test_ctrl_c_ends_a_diagnostic_with_what_is_finished():
    @progress.shows("curve")
    def curve():
        progress.stage("rows", 3, "rows")
        inner()
        progress.keep("first")
        progress.advance()
        raise KeyboardInterrupt

    @progress.shows("row")
    def inner():
        return None

    for _ in range(2):  # nothing stays from the call before
        with pytest.raises(
            progress.Interrupted, match="curve, rows, 1 of 3 rows: interrupted; 1 finished part: "
        ) as stop:
            curve()
        assert stop.value.finished == ("first",)
        assert isinstance(stop.value, KeyboardInterrupt)


def test_a_pipe_gets_lines_where_they_are_asked_for(capfd):
    with progress.shown("training", True):
        progress.stage("", 3, "steps")
        for _ in range(3):
            progress.advance()
    out, err = capfd.readouterr()
    assert out == ""
    assert "\r" not in err
    assert err.splitlines()[-1].startswith("training [####################] 3 of 3 steps")
    assert len(err.splitlines()) < 4


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_stderr_that_is_gone_shows_nothing(monkeypatch, stream):
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.shown("training"):
        progress.advance()


def test_false_hides_all_inside_and_no_more(terminal):
    with progress.shown("outer", False), progress.shown("inner", True):
        progress.advance()
    assert terminal.getvalue() == ""
    with progress.shown("later"):
        progress.stage("", 1)
    assert "later" in terminal.getvalue()


@pytest.mark.parametrize("visible", [None, True])
def test_what_runs_inside_reports_to_the_display_that_is_open(terminal, visible):
    with progress.shown("outer"), progress.shown("inner", visible):
        progress.stage("chains", 7, "moves")
        progress.advance(3)
    assert "inner" not in terminal.getvalue()
    assert looks(terminal)[-2].startswith("outer, chains [#########-----------] 3 of 7 moves")
    assert terminal.getvalue().count("\n") == 1


def test_an_annealing_inside_of_a_coefficient_is_seen(terminal):
    posterior = LocalPosterior.from_function(bowl, jnp.zeros(1), n=100)
    learning_coefficient(posterior, sampler=SMC(particles=20, repeats=2), key=jax.random.key(0))
    assert "learning coefficient, annealing [" in terminal.getvalue()


def test_another_thread_neither_shows_nor_hides(terminal):
    """Cells of a pool of threads hide their own progress, and not that of the run."""
    with progress.shown("run"):
        progress.stage("", 2, "cells")

        hidden, seen = threading.Event(), threading.Event()

        def cell():
            with progress.shown("cell", False):
                progress.advance(5)
                hidden.set()
                seen.wait(10)

        thread = threading.Thread(target=cell)
        thread.start()
        hidden.wait(10)
        progress.advance()
        seen.set()
        thread.join()
    assert "1 of 2 cells" in looks(terminal)[-2]


def test_what_fails_is_not_said_to_be_done(terminal):
    def fail():
        with progress.shown("training"):
            progress.stage("", 4, "steps")
            progress.advance()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert "1 of 4 steps" in looks(terminal)[-1]


def test_what_is_no_answer_is_refused():
    assert_refused(
        lambda: progress.shown("x", cast(Any, "yes")).__enter__(), "progress: expected True, False or None, got 'yes'"
    )


def test_a_notebook_has_a_line_that_is_written_again(monkeypatch):
    """With IPython alone: no widgets."""
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(("again", data["text/plain"]))

    def display(data, raw, display_id):
        shown.append(("new", data["text/plain"]))
        return Handle()

    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    with progress.shown("training"):
        progress.stage("", 2, "steps")
        progress.advance(2)
    assert [kind for kind, _ in shown][:1] == ["new"]
    assert {kind for kind, _ in shown[1:]} == {"again"}
    assert shown[-1][1].startswith("training [####################] 2 of 2 steps")


def bowl(w, *samples):
    return jnp.sum(w**2) / 2 + sum(jnp.mean(x) * 0 for x in samples)


ROUTES = {
    "HMC": (HMC(chains=4, warm_up=30, draws=70), "HMC [", "of 100 moves"),
    "SGLD": (SGLD(chains=4, warm_up=30, draws=70, batch=4), "SGLD [", "of 100 moves"),
    "NUTS": (NUTS(chains=4, warm_up=20, draws=20), "NUTS [", "of 80 draws"),
    "Quadrature": (Quadrature(points=9), "quadrature [", "of 9 nodes"),
}


@pytest.fixture
def _compiled_as_usual():
    """Without ``compile_quickly``, under which two programs of the same numbers agree to rounding alone."""
    quick = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.mark.usefixtures("_compiled_as_usual")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "NUTS")) for name in ROUTES])
def test_samplers_show_their_moves_and_draw_the_same_bits(name, terminal):
    sampler, label, total = ROUTES[name]
    data = jnp.ones(16) if name == "SGLD" else None
    posterior = LocalPosterior.from_function(bowl, jnp.zeros(1), data=data, nbeta=3.0, localization=1.0)

    def numbers(visible):
        draws = sampler.sample(posterior, key=jax.random.key(0), progress=visible)
        return np.asarray(draws.weights if name == "Quadrature" else draws.chains.terms)

    silent = numbers(False)
    assert terminal.getvalue() == ""
    watched = numbers(None)
    np.testing.assert_array_equal(watched, silent)
    assert label in terminal.getvalue()
    assert total in terminal.getvalue()
    if name in ("HMC", "SGLD"):
        assert "nbeta (L - L*) " in terminal.getvalue()


def hot():
    return LocalPosterior.from_function(bowl, jnp.zeros(1), nbeta=[30.0], localization=1.0)


def test_populations_show_their_temperature(terminal):
    free_energy(hot(), key=jax.random.key(0), sampler=SMC(particles=20, repeats=2))
    assert "free energy, annealing [" in terminal.getvalue()
    assert "nbeta 0 of 30" in terminal.getvalue()


def test_the_argument_hides_it(terminal):
    free_energy(hot(), key=jax.random.key(0), sampler=SMC(particles=20, repeats=2), progress=False)
    assert terminal.getvalue() == ""
