"""Windows of bytes: which there are, how likely each is, and what is refused."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import with_bos
from character_tokenizer import CharacterTokenizer
from drawing import sampled, sampled_many

from icllab.core.errors import InputError, ResultWarning
from icllab.tasks import Text, text_files
from icllab.tasks.text import PRINTABLE
from icllab.tasks.text_files import Documents

FILES = Documents(("a", "b", "c"), (b"abcd", b"xyz", b"ababa"))


def unchecked(function):
    """As a user without a type checker has it; of a class method, the function of the class."""
    return inspect.unwrap(getattr(function, "__func__", function))


def windows_of(documents, tokens):
    """All there are, by another route."""
    found = [one[i : i + tokens] for one in documents.contents for i in range(len(one) - tokens + 1)]
    return sorted(found)


def test_every_window_within_a_file_is_drawn_and_no_other_all_equally_often(getkey):
    task = Text.from_documents(FILES, tokens=3)
    every = jax.vmap(task._window)(jnp.arange(int(task.windows[-1])))
    assert sorted(bytes(row) for row in np.asarray(every.tokens, np.uint8)) == windows_of(FILES, 3)
    drawn = np.asarray(sampled_many(task, 12_000, getkey()).tokens, np.uint8)
    names, counts = np.unique([bytes(row) for row in drawn], return_counts=True)
    possible, times = np.unique(windows_of(FILES, 3), return_counts=True)
    np.testing.assert_array_equal(names, possible)
    p = times / times.sum()
    assert np.all(np.abs(counts / 12_000 - p) < 4.5 * np.sqrt(p * (1 - p) / 12_000))


def test_an_alphabet_numbers_its_bytes_and_makes_all_others_one():
    task = Text.from_documents(FILES, tokens=3, alphabet=b"ba")
    assert task.vocabulary == 3
    np.testing.assert_array_equal(task.symbols, [1, 0, 2, 2, 2, 2, 2, 1, 0, 1, 0, 1])
    assert Text.from_documents(FILES, tokens=3).vocabulary == 256
    assert len(PRINTABLE) == 96


def test_a_tokenizer_gives_the_windows_of_its_tokens_within_files(getkey):
    files = Documents(("a", "b"), (b"the theme", "thé\nhe".encode()))
    tokenizer = CharacterTokenizer("the")
    task = Text.from_documents(files, tokens=4, tokenizer=tokenizer)
    assert task.vocabulary == tokenizer.get_vocab_size() == 98
    # 5 tokens have two windows, 6 have three; no file begins with a special token.
    every = jax.vmap(task._window)(jnp.arange(int(task.windows[-1])))
    assert [tokenizer.decode(row) for row in np.asarray(every.tokens)] == [
        "the them",
        " theme",
        "thé\n",
        "hé\nh",
        "é\nhe",
    ]
    assert every.mask is None
    counts = task.counts(2)
    assert counts.sum() == 4 + 5
    assert counts[tokenizer.encode("e", False).ids[0]].sum() == 0
    assert Text.from_documents(files, tokens=4, tokenizer=tokenizer, vocabulary=300).symbols.dtype == jnp.uint16
    with pytest.raises(InputError, match="tokens at 1: expected an id from 0 to 49"):
        Text.from_documents(files, tokens=4, tokenizer=tokenizer, vocabulary=50)


def test_a_file_shorter_than_a_window_is_padded_where_that_is_allowed(getkey):
    task = Text.from_documents(FILES, tokens=4, alphabet=b"abcd", pad=True)
    every = jax.vmap(task._window)(jnp.arange(int(task.windows[-1])))
    assert [bytes(row[:size]) for row, size in zip(np.asarray(every.tokens, np.uint8), (4, 3, 4, 4), strict=True)] == [
        b"\0\1\2\3",
        b"\4\4\4",
        b"\0\1\0\1",
        b"\1\0\1\0",
    ]
    np.testing.assert_array_equal(every.mask.sum(axis=1), [4, 3, 4, 4])
    np.testing.assert_array_equal(task.counts(2), Text.from_documents(FILES, tokens=2, alphabet=b"abcd").counts(2))
    losses = jax.vmap(task.loss)(jnp.zeros((4, 3, 5)), every)
    np.testing.assert_array_equal(np.isnan(losses), [[False] * 3, [False, False, True], [False] * 3, [False] * 3])
    assert set(np.unique(np.asarray(sampled_many(task, 99, getkey()).mask).sum(axis=1))) == {3, 4}


def test_the_target_is_the_next_token_and_a_certain_answer_costs_nothing(getkey):
    task = Text.from_documents(FILES, tokens=3)
    prompt = sampled(task, getkey())
    np.testing.assert_array_equal(task.targets(prompt), prompt.tokens[1:])
    even = task.loss(jnp.zeros((2, 256)), prompt)
    np.testing.assert_allclose(even, np.log(256), rtol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_counts_are_those_within_files(order):
    task = Text.from_documents(FILES, tokens=3, alphabet=b"abcd")
    counts = task.counts(order)
    symbols = [[b"abcd".find(bytes([x])) % 5 for x in one] for one in FILES.contents]
    expected = np.zeros((5,) * order)
    for one in symbols:
        for i in range(len(one) - order + 1):
            expected[tuple(one[i : i + order])] += 1
    np.testing.assert_array_equal(counts, expected.reshape(-1, 5))


def test_files_are_read_by_their_paths(tmp_path):
    for name, content in (("one.txt", b"\xff\x00abc"), ("two.txt", b"hello")):
        (tmp_path / name).write_bytes(content)
    task = Text.from_files([tmp_path / "one.txt", tmp_path / "two.txt"], tokens=4)
    np.testing.assert_array_equal(task.symbols, list(b"\xff\x00abchello"))


@pytest.mark.parametrize("pad", [False, True])
def test_each_window_begins_with_what_the_tokenizer_puts_before_a_text(pad, getkey):
    """The windows after it are those of a task of one token less, and the BOS token is in no count."""
    tokenizer = with_bos()
    files = Documents(("a", "b"), (b"abcdef", b"xyz")) if pad else FILES
    task = Text.from_documents(files, tokens=5 if pad else 4, tokenizer=tokenizer, pad=pad)
    bare = Text.from_documents(files, tokens=4 if pad else 3, tokenizer=tokenizer, pad=pad, bos=False)
    assert task.beginning == (0,)
    assert "beginning=(0,)" in repr(task)
    assert bare.beginning == ()
    prompts, windows = (jax.vmap(t._window)(jnp.arange(int(t.windows[-1]))) for t in (task, bare))
    np.testing.assert_array_equal(prompts.tokens[:, 0], 0)
    np.testing.assert_array_equal(prompts.tokens[:, 1:], windows.tokens)
    if pad:
        np.testing.assert_array_equal(prompts.mask[:, 1:], windows.mask)
        assert bool(jnp.all(prompts.mask[:, 0]))
    np.testing.assert_array_equal(task.counts(2), bare.counts(2))
    prompt = sampled(task, getkey())
    assert prompt.tokens.shape == (task.tokens,)
    assert task.loss(jnp.zeros((prompt.positions, task.vocabulary)), prompt).shape == (task.tokens - 1,)
    with pytest.raises(InputError, match="tokens: expected an integer of at least 2"):
        Text.from_documents(files, tokens=1, tokenizer=tokenizer)


def test_a_beginning_can_be_left_out_of_files_by_their_paths(tmp_path):
    (tmp_path / "one.txt").write_bytes(b"hello")
    tasks = [Text.from_files([tmp_path / "one.txt"], tokens=4, tokenizer=with_bos(), bos=bos) for bos in (True, False)]
    assert [task.beginning for task in tasks] == [(0,), ()]


def test_settings_of_a_tokenizer_do_not_reach_the_windows():
    whole, tokenizer = with_bos(), with_bos()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50, pad_id=1, pad_token="!")
    with pytest.warns(ResultWarning, match="tokenizer: switched off truncation to 3 tokens, padding with '!'"):
        task = Text.from_documents(FILES, tokens=3, tokenizer=tokenizer)
    np.testing.assert_array_equal(task.symbols, Text.from_documents(FILES, tokens=3, tokenizer=whole).symbols)
    assert tokenizer.truncation["max_length"] == 3


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: Text.from_documents(FILES, tokens=4), "b: expected at least 4 bytes, the size of a window, got 3"),
        (lambda: Text.from_documents(FILES, tokens=1), "tokens: expected an integer of at least 2"),
        (
            lambda: Text.from_documents(FILES, tokens=2, alphabet=b"aa"),
            "alphabet: expected between 1 and 255 different bytes",
        ),
        (lambda: Text.from_documents(Documents((), ()), tokens=2), "documents: expected at least one file, got 0"),
        (
            lambda: Text.from_files("one.txt", tokens=2),
            "paths: expected a list of paths, got 'one.txt'; put the one path",
        ),
        (lambda: unchecked(text_files.read)(Path("one.txt")), "paths: expected a list of paths, got Pos"),
        (
            lambda: unchecked(Text.from_documents)(Text, FILES, tokens=2, alphabet="ab"),
            "alphabet: expected bytes, got 'ab'; such",
        ),
        (
            lambda: Text.from_documents(Documents(("a",), (b"ab\xff",)), tokens=2, tokenizer=CharacterTokenizer()),
            "a: expected text in UTF-8, got 'byte 0xff at 2'; leave",
        ),
        (
            lambda: Text.from_documents(FILES, tokens=4, tokenizer=CharacterTokenizer("ababa", "ab")),
            "c: expected at least 4 tokens, the size of a window, got 1; leave short",
        ),
        (
            lambda: Text.from_documents(FILES, tokens=4, tokenizer=CharacterTokenizer("ababa"), pad=True),
            "c: expected at least 2 tokens, the size of a window, got 1; leave short",
        ),
        (
            lambda: Text.from_documents(FILES, tokens=2, alphabet=b"ab", tokenizer=CharacterTokenizer()),
            "alphabet: expected None with a tokenizer, got b'ab'",
        ),
        (
            lambda: Text.from_documents(FILES, tokens=2, vocabulary=300),
            "vocabulary: expected a tokenizer with it, got 300",
        ),
        (lambda: Text.from_files([], tokens=2), "paths: expected at least one file, got []"),
        (lambda: Text.from_files(["no such"], tokens=2), "paths: expected files that can be read, got 'no such'"),
        (
            lambda: Text.from_documents(FILES, tokens=2).counts(4),
            "order: expected a table of at most 2^25 entries, not 256^4",
        ),
        (lambda: FILES.split(held_out=1.0), "held_out: expected a number between 0 and 1, got 1.0"),
        (lambda: FILES.split(held_out=1e-9), "held_out: expected a fraction that splits 3 files"),
    ],
)
def test_bad_questions(ask, said):
    with pytest.raises(InputError) as error:
        ask()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


class Long(bytes):
    """Of a length that it does not have."""

    def __len__(self):
        return 2**30


def test_places_and_not_only_windows_are_numbered_in_32_bits():
    """Every file has a place more than windows: of two files of 2^30 bytes one number would be negative."""
    with pytest.raises(InputError) as error:
        Text.from_documents(Documents(("a", "b"), (Long(b"x"), Long(b"y"))), tokens=2)
    assert "documents: expected fewer than 2^31 bytes, got 2147483648; use fewer files" in str(error.value)


def test_a_digest_tells_corpora_apart_and_a_split_does_not_depend_on_what_else_is_there():
    assert FILES.digest() != Documents(FILES.names, (b"abcd", b"xyz", b"ababb")).digest()
    assert FILES.digest() != Documents(FILES.names, (b"abc", b"dxyz", b"ababa")).digest()
    many = Documents(tuple(f"{i}.py" for i in range(400)), tuple(b"%d" % i for i in range(400)))
    kept, apart = many.split(held_out=0.2)
    assert set(kept.names) | set(apart.names) == set(many.names)
    assert not set(kept.names) & set(apart.names)
    assert abs(len(apart.names) / 400 - 0.2) < 4.5 * np.sqrt(0.2 * 0.8 / 400)
    fewer = Documents(many.names[::2], many.contents[::2])
    assert set(fewer.split(held_out=0.2)[1].names) == set(apart.names) & set(fewer.names)
    assert many.at_least(3).names == many.names[100:]


def test_the_standard_library_is_a_corpus_without_its_tests():
    """The version of Python decides what is in it, not where it stands."""
    found = text_files.standard_library()
    assert {"argparse.py", "json/decoder.py", "random.py"} <= set(found.names)
    assert not any(part in ("test", "site-packages") for name in found.names for part in name.split("/")[:-1])
    assert found.size > 3_000_000
    assert found.names == tuple(sorted(found.names))
    assert found.source.startswith("standard library of Python 3.")
    shared = sum(content.count(byte.to_bytes()) for content in found.contents[:20] for byte in PRINTABLE)
    assert shared > 0.99 * sum(map(len, found.contents[:20]))


def test_the_text_is_an_argument_of_a_program_and_no_constant(getkey):
    task = Text.from_documents(FILES, tokens=3)
    traced = jax.make_jaxpr(lambda task, key: task.sample_many(5, key=key))(task, getkey())
    assert [str(x.aval) for x in traced.jaxpr.invars][:2] == ["uint8[12]", "int32[3]"]
    assert not traced.consts


def test_symbols_are_of_the_vocabulary():
    symbols, windows = jnp.asarray([0, 3, 1], jnp.uint8), jnp.asarray([2])
    assert Text(symbols, windows, 2, 4).class_count == 4
    with pytest.raises(InputError, match="symbols at 1: expected an id from 0 to 2, a vocabulary of 3, got 3"):
        Text(symbols, windows, 2, 3)
