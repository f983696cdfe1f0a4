"""A certificate states what the data say, and any edit of it is found."""

import copy
import re

import pytest

from icllab.cli import main
from icllab.core.errors import InputError
from icllab.lab import certificate, evidence, power, records, verification
from icllab.lab.evidence import evidence_of

RECORDED = "asymptotics/double_descent"
WITHOUT_DATA = "asymptotics/task_diversity_threshold"


@pytest.fixture(scope="module")
def computed():
    """All that can be computed of a claim's record, unrounded."""
    return certificate.assemble(evidence_of(RECORDED))


@pytest.fixture
def whole(computed, monkeypatch):
    """The certificate; to verify it costs no second judgement of the data."""
    monkeypatch.setattr(certificate, "assemble", lambda basis: copy.deepcopy(computed))
    return certificate.certificate(evidence_of(RECORDED))


@pytest.fixture
def verified(tmp_path):
    """Function from content, or text, to its verification."""

    def verify(content, **options):
        file = tmp_path / "certificate.json"
        file.write_bytes(content.encode() if isinstance(content, str) else certificate.as_bytes(content))
        return verification.verify(file, **options)

    return verify


def leaves(value, at=()):
    """Path and value of every text, number and flag."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, (*at, name))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from leaves(part, (*at, i))
    else:
        yield at, value


def altered(content, at, value):
    """The content with another leaf, and the digest made right again."""
    content = copy.deepcopy(content)
    put(content, at, value)
    return certificate.sealed(content)


def put(content, at, value):
    """Another leaf in the content itself."""
    for name in at[:-1]:
        content = content[name]
    content[at[-1]] = value


def edits(value):
    """Every value that differs in one digit or letter, of a number in its spelling."""
    if value is None or isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [value[:i] + ("1" if value[i] != "1" else "2") + value[i + 1 :] for i in range(len(value))] or ["1"]
    text = repr(value)
    digits = [i for i, letter in enumerate(text) if letter.isdigit()]
    texts = [text[:i] + str((int(text[i]) + 1) % 10) + text[i + 1 :] for i in digits]
    return [float(t) for t in texts if float(t) != value]


def test_a_certificate_states_what_the_record_does(whole):
    entry = records.read(RECORDED)["small"]
    for row in entry["findings"]:
        stated = whole["findings"][row["id"]]
        assert {name: stated[name] for name in evidence.NUMBERS} == {name: row[name] for name in evidence.NUMBERS}
        assert stated["outcome"] == row["outcome"]
    assert {n: c["falsifies"] for n, c in whole["controls"].items()} == {
        n: c["fails"] for n, c in entry["controls"].items()
    }
    assert whole["digests"]["data"]["small"] == entry["digest"]
    assert whole["digests"]["data"]["small@ridge"] == entry["controls"]["ridge"]["digest"]
    assert whole["design"]["key"] == 0
    assert whole["design"]["seeds"] == list(range(48))
    # Two cores for the seconds of the claim and of the controls that were measured.
    seconds = entry["seconds"] + sum(control.get("seconds", 0) for control in entry["controls"].values())
    assert whole["measurement"]["core_hours_at_most"] == pytest.approx(2 * seconds / 3600, rel=1e-2)
    changed = "+changes" in str(entry["commit"])
    assert whole["measurement"]["working_tree"] == ("changed" if changed else "clean")
    assert whole["findings"]["peak[dim=40]"]["falsified_by"] == ["ridge"]  # which has dim 10 and 20: by name


def test_an_unchanged_certificate_agrees(whole, verified):
    result = verified(whole)
    assert (result.exit_status, result.differs) == (0, ())
    assert {"21 findings", "4 controls", "digests of data (4)", "its digest"} <= set(result.agrees)
    assert "date" in result.unchecked[0]
    assert result.line.count("\n") == 0
    assert "differs: nothing" in result.line


def test_a_certificate_of_version_03_agrees_and_one_of_another_generator_does_not(whole, verified):
    assert whole["design"]["generator"] == "threefry2x32, partitionable"
    older = {name: value for name, value in copy.deepcopy(whole).items() if name not in ("faults", "conformance")}
    older |= {"schema": certificate.OLDER, "issued": {**whole["issued"], "commit": "0" * 40}, "checklists": {}}
    for name in ("generator", "matmul_precision"):
        del older["design"][name]
    for id, row in older["findings"].items():  # a control falsified every finding whose name fails under it
        failing = {name: [other.partition("[")[0] for other in c["falsifies"]] for name, c in whole["controls"].items()}
        row["falsified_by"] = [name for name, names in failing.items() if id.partition("[")[0] in names]
    assert older["findings"] != whole["findings"]
    assert verified(certificate.sealed(older)).exit_status == 0
    (line,) = verified(altered(whole, ("design", "generator"), "rbg")).differs
    assert line == "design/generator is 'rbg', computed: 'threefry2x32, partitionable'"


def test_a_claim_from_elsewhere_has_the_shared_power_of_its_certificate_of_version_03(computed):
    """Its files imported the statistics; of a shipped claim the records of the families name it."""
    rhat = {"claims_check": False, **{name: power.tables()["rhat"][name] for name in power.tables()["rhat"]}}
    del rhat["claims"]
    stated = {**computed, "schema": certificate.OLDER, "claim": "a/b", "power": {"rhat": rhat, "flag_token": rhat}}
    for conformance, families in (({}, {"rhat": rhat}), (None, computed["power"])):
        _, older = certificate.as_stated(stated, {**computed, "claim": "a/b", "conformance": conformance})
        assert older["power"] == families
    for broken in (None, 1, "rhat"):
        _, older = certificate.as_stated({**stated, "power": broken}, {**computed, "conformance": {}})
        assert older["power"] == computed["power"]


def test_twenty_edits_by_one_digit_are_found(whole, verified):
    text = certificate.as_bytes(whole).decode()
    digits = [match.start() for match in re.finditer(r"[0-8]", text)][
        1:
    ]  # the first is of the schema, refused if edited
    for i in digits[:: len(digits) // 20][:20]:
        result = verified(text[:i] + str(int(text[i]) + 1) + text[i + 1 :])
        assert result.exit_status == 1, text[i - 40 : i + 20]
        assert "edited" in result.differs[0]


def test_every_edit_under_a_new_digest_is_found(whole, computed):
    """Each leaf is computed again; of findings and design every single digit."""
    count = 0
    for at, value in leaves(whole):
        if at[0] in ("issued", "digest"):
            continue
        options = edits(value)
        if at[0] not in ("findings", "design"):
            options = options[:: max(len(options) // 2, 1)]
        for option in options:
            put(whole, at, option)
            stated, right, place = whole[at[0]], computed[at[0]], at[:1]
            if at[0] in ("findings", "controls", "power"):  # one row of the table
                stated, right, place = stated[at[1]], right[at[1]], at[:2]
            assert list(verification.differences(stated, right, place)), (at, value, option)
            count += 1
        put(whole, at, value)
    assert count > 2000


@pytest.mark.parametrize("part", ["statement", "findings", "controls", "power", "design", "digests", "checklists"])
def test_a_missing_part_and_one_too_many_are_found(part, whole, verified):
    shorter = certificate.sealed({name: value for name, value in whole.items() if name != part})
    assert verified(shorter).exit_status == 1
    name = next(iter(whole[part]))
    fewer = {key: value for key, value in whole[part].items() if key != name}
    assert verified(certificate.sealed({**whole, part: fewer})).exit_status == 1
    more = {**whole[part], "another": copy.deepcopy(whole[part][name])}
    assert verified(certificate.sealed({**whole, part: more})).exit_status == 1
    assert verified(certificate.sealed({**whole, part: 1.0})).exit_status == 1


def test_the_rounding_of_another_machine_is_no_edit(whole, computed):
    rounded = copy.deepcopy(computed)
    for row in rounded["findings"].values():
        row |= {name: row[name] * (1 + 3e-13) for name in evidence.NUMBERS}
    assert not list(verification.differences(whole, rounded))
    # Between two numbers of six digits either is right, and no third one.
    row = rounded["findings"]["peak_limit"]
    row["standard_error"] = 0.1234565
    for stated, right in ((0.123456, True), (0.123457, True), (0.123455, False), (0.123458, False)):
        changes = verification.differences({"standard_error": stated}, row, ("findings", "peak_limit"))
        assert right == (("findings", "peak_limit", "standard_error") not in {at for at, *_ in changes})


def test_other_data_in_the_record_are_found(whole, verified, monkeypatch):
    def damaged(claim, size=None, control=None, folder=None):
        raise records.DamagedFile("record.nc: expected data of digest 1 in small, got 2; restore it")

    monkeypatch.undo()
    monkeypatch.setattr(records, "data", damaged)
    result = verified(whole)
    assert result.exit_status == 1
    assert result.differs[0].startswith("data: record.nc: expected data of digest")


def test_another_version_of_the_library_may_word_its_checklists_otherwise(whole, verified):
    other = altered(whole, ("checklists", "TMLR", "Of interest to some readers"), "to all")
    assert verified(other).exit_status == 1
    older = certificate.sealed({**other, "issued": {**other["issued"], "package": "0.2.9"}})
    result = verified(older)
    assert result.exit_status == 0
    assert any("0.2.9" in text for text in result.unchecked)


def test_a_claim_without_data_has_no_certificate_and_one_of_version_03_is_not_checked(whole, verified, capfd):
    words = f"{WITHOUT_DATA} is not recorded at size small"
    assert main(["certify", WITHOUT_DATA]) == 3
    assert words in capfd.readouterr().err
    older = {**whole, "claim": WITHOUT_DATA, "size": "small", "origin": "entry", "schema": certificate.OLDER}
    result = verified(certificate.sealed(older))
    assert (result.exit_status, result.verdict, result.differs) == (3, None, ())
    assert f"all else ({words}" in result.unchecked[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "{}",
        '{"schema": "icl-certificate/2"}',
        '{"schema": "icl-certificate/3"}',
        '{"schema": "icl-certificate/1", "claim": 3}',
        '{"schema": "icl-certificate/1", "schema": "icl-certificate/1"}',
        '{"schema": "icl-certificate/1", "x": NaN}',
        "[" * 100_000,
        "\x89HDF\r\n",
    ],
)
def test_what_is_no_certificate_is_refused_in_a_line(text, verified):
    with pytest.raises(InputError) as refusal:
        verified(text)
    assert "\n" not in str(refusal.value)


def test_names_that_stand_twice_and_numbers_that_are_none_are_refused(whole, verified):
    """A reader that takes the first of the two would read another certificate."""
    text = certificate.as_bytes(whole).decode()
    with pytest.raises(InputError, match="twice"):
        verified(text.replace("{", '{ "verdict": "fails",', 1))
    for number in ("NaN", "1e999"):
        with pytest.raises(InputError, match="strict JSON"):
            verified(text.replace('"notes": []', f'"notes": [{number}]'))


@pytest.mark.parametrize(("name", "value"), [("claim", "no/such"), ("size", "smoke"), ("origin", "hearsay")])
def test_a_certificate_of_nothing_that_is_known_is_refused(name, value, whole, verified):
    with pytest.raises(InputError):
        verified(certificate.sealed({**whole, name: value}))
    assert verified({**whole, name: value}).exit_status == 1  # edited, so it is no mistake of the verifier's


def test_a_claim_without_results_cannot_be_checked(whole, verified, tmp_path):
    result = verified(certificate.sealed({**whole, "origin": "results"}), out=tmp_path / "none")
    assert result.exit_status == 3
    assert "all else" in result.unchecked[0]
