"""Claims in an examination: how the book is got if it is absent, and what a process says of a claim."""

import json
import sys

from icllab.examination import claims
from icllab.lab import records, registry

ROW = {"claim": "a/b", "sentence": "The network adds.", "network": "the sum", "recorded": "holds", "size": "small"}


def test_without_the_book_the_report_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(registry, "books", lambda: ())
    assert "pip install -e book" in str(claims.part([]))
    assert "no claim" in str(claims.part([])).lower() or "no book" in str(claims.part([])).lower()


def test_a_report_states_the_verdict_the_reason_or_how_to_ask():
    rows = [ROW, ROW | {"verdict": "fails"}, ROW | {"verdict": None, "reason": "it took more than 600 s"}]
    text = str(claims.part(rows))
    for part in ("icl run a/b --network", "fails", "it took more than 600 s", "It holds of the sum."):
        assert part in text


def test_claims_apply_by_kind_and_a_training_run_needs_checkpoints(monkeypatch):
    subjects = {
        "a/one": {"kind": "regression", "run": False, "network": "ridge"},
        "a/run": {"kind": "regression", "run": True, "network": "ridge"},
        "a/lm": {"kind": "language model", "run": False, "network": "SmolLM2"},
        "a/none": None,
    }
    card = records.card(next(iter(registry.claims())))
    monkeypatch.setattr(registry, "claims", lambda: dict.fromkeys(subjects))
    monkeypatch.setattr(records, "card", lambda name: card)
    stated = {name: {"subject": subject} if subject else {} for name, subject in subjects.items()}
    monkeypatch.setattr(records, "statement", stated.__getitem__)
    assert [row["claim"] for row in claims.applicable("regression", False)] == ["a/one"]
    assert [row["claim"] for row in claims.applicable("regression", True)] == ["a/one", "a/run"]
    assert [row["claim"] for row in claims.applicable("language model", True)] == ["a/lm"]


def answered(text, seconds=60.0):
    return claims._answer([sys.executable, "-c", text], seconds)


def test_a_process_answers_with_a_verdict_an_error_or_its_end():
    verdict = {"verdict": "holds", "controls": {"zero": "fails"}}
    assert answered(f"print({json.dumps(json.dumps(verdict))})") == verdict
    assert answered(f"print({json.dumps(json.dumps({'error': {'kind': 'InputError', 'message': 'no dim'}}))})") == {
        "verdict": None,
        "reason": "no dim",
    }
    assert answered("raise SystemExit(1)")["reason"] == "its process died"
    assert "took more than" in answered("import time; time.sleep(60)", 0.5)["reason"]
