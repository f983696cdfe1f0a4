"""Reproducibility checklists of venues, answered from the fields of a certificate; other items stay open.

The items are paraphrased. An answer is about this one claim: what a paper says around it is for its authors. None is an
item that a certificate cannot answer.

Sources: the NeurIPS paper checklist (2025), and TMLR's acceptance criteria and guide for authors.
"""

from collections.abc import Mapping
from typing import Any

from icllab.lab.outcomes import worded

Answers = dict[str, dict[str, str | None]]


def answers(content: Mapping[str, Any]) -> Answers:
    """Map each venue to its items with their answers, in the order of its list."""
    statement, design, cost = content["statement"], content["design"], content["measurement"]
    sample = f"key {design['key']}, {len(design['seeds'])} seeds" if design["seeds"] else f"key {design['key']}"
    claims = f"One claim, the sentence of this certificate. {content['verdict']}: {worded(content['counts'])}."
    scope = f"{statement['conditions']} {_unfalsified(content)}".strip()
    repeat = (
        f"`{command(content)}` measures it again ({sample}). `icl verify` computes every number again from the data, "
        "and `--rerun 5%` measures cells again."
    )
    setting = "; ".join(f"{name} = {_values(values)}" for name, values in design["axes"].items())
    fixed = "; ".join(f"{name} = {value}" for name, value in design["fixed"].items())
    setting = "; ".join(filter(None, [setting, fixed, design["precision"]]))
    return {
        "NeurIPS": {
            "1 Claims match results": claims,
            "2 Limitations": scope,
            "3 Assumptions and proofs": None,
            "4 Results can be reproduced": repeat,
            "5 Open data and code": _open(content),
            "6 Settings": f"{setting}. The rest is in the sources whose digests stand here.",
            "7 Statistical significance": _errors(content),
            "8 Compute": _compute(cost),
            "9 Code of ethics": None,
            "10 Broader impact": None,
            "11 Safeguards": None,
            "12 Licences of assets used": None,
            "13 New assets documented": None,
            "14 Crowdsourcing, human subjects": None,
            "15 Review board approval": None,
            "16 Use of language models": None,
        },
        "TMLR": {
            "Evidence supports the claims": claims,
            "No claim beyond its evidence": scope,
            "Evidence is clear and can be checked": f"{_errors(content)} {_controls(content)}",
            "Code and data to reproduce it": repeat,
            "Of interest to some readers": None,
            "Statement of broader impact, if harm is likely": None,
            "Human subjects, funding, competing interests": None,
        },
    }


def command(content: Mapping[str, Any]) -> str:
    """The command that measures the claim again; DIR is the folder of a claim that is not in a trusted book."""
    folder = "" if content["conformance"] is None else " --claims DIR"
    return f"icl run {content['claim']} --size {content['size']}{folder}"


def _values(values: list[Any]) -> str:
    """Spell the values of an axis; of more than six, the first and the last."""
    texts = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
    return ", ".join(texts) if len(texts) <= 6 else f"{texts[0]} to {texts[-1]} ({len(texts)} values)"


def _unfalsified(content: Mapping[str, Any]) -> str:
    """Count the findings that are undecided, and those that no control falsifies."""
    rows = [row for row in content["findings"].values() if row["about"] == "claim"]
    undecided = sum(row["outcome"] == "undecided" for row in rows)
    untouched = sum(not row["falsified_by"] for row in rows)
    texts = [f"{undecided} of {len(rows)} findings are undecided." if undecided else ""]
    texts += [f"No recorded control falsifies {untouched} of {len(rows)} findings." if untouched else ""]
    return " ".join(filter(None, texts))


def _open(content: Mapping[str, Any]) -> str | None:
    """Answer for data of a trusted book; None for results and claims of others, whose owner knows."""
    if content["origin"] == "results" or content["conformance"] is not None:
        return None
    return "Code and measured data are in the book of icl-lab; their digests stand here."


def _errors(content: Mapping[str, Any]) -> str:
    exact = sum(row["standard_error"] == 0 for row in content["findings"].values())
    some = f"; {exact} of {len(content['findings'])} compare exact numbers" if exact else ""
    seeds = len(content["design"]["seeds"])
    over = f", over {seeds} seeds" if seeds else ""
    return f"Every finding has its standard error{over}, and the tolerance that decided it{some}."


def _controls(content: Mapping[str, Any]) -> str:
    controls = content["controls"].values()
    refuted = sum(control["verdict"] == "fails" for control in controls)
    return f"The check fails under {refuted} of {len(controls)} negative controls."


def _compute(cost: Mapping[str, Any]) -> str:
    hours = cost["core_hours_at_most"]
    spent = f"{cost['hours']:g} hours" if hours is None else f"at most {hours:g} core-hours"
    return f"{cost['machine']}: {spent}, with controls."
