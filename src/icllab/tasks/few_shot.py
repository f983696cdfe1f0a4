r"""Few-shot prompts: some pairs of a table as examples, then a question; only the answer is scored.

.. math:: \text{France -> Paris} \;\; \text{Kenya -> Nairobi} \;\; \text{Norway ->}

The labels of the examples are right, shuffled, or replaced by new symbols. Shuffling keeps all words of the examples
and undoes their pairing; with new symbols only the examples tell the answer.
"""

from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, require_flag, require_integer, require_key, require_known
from icllab.core.prompt import TokenPrompt
from icllab.core.tokenizers import beginning, plain
from icllab.core.vocabularies import in_vocabulary
from icllab.tasks.sequences import AbstractTokens

LABELS = ("right", "shuffled", "symbols")
SYMBOLS = ("foo", "bar", "zip", "log", "mix", "tab")
EMPTY = -1


class FewShotPrompt(TokenPrompt):
    """Tokens of a prompt whose loss counts only the answer's tokens.

    Attributes:
        answer: True for the tokens of the answer; None: for all that are real.
    """

    answer: Bool[Array, " token"] | None = None

    @property
    def scored(self) -> Bool[Array, "*prompt position"] | None:
        """True at positions whose next token belongs to the answer."""
        return super().scored if self.answer is None else self.answer[..., 1:]

    @property
    def query(self) -> Int[Array, ""]:
        """Position of the last token before the answer."""
        return jnp.argmax(jnp.ones_like(self.tokens, bool) if self.answer is None else self.answer) - 1

    def replaced_after(self, position: int, replacement: "FewShotPrompt") -> "FewShotPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keep the tokens and their answer mask up to and including ``position``; replace the rest."""
        plain, answer = super().replaced_after(position, replacement), None
        if self.answer is not None and replacement.answer is not None:
            answer = jnp.where(jnp.arange(len(self.answer)) <= position, self.answer, replacement.answer)
            answer = answer if plain.mask is None else answer & plain.mask
        return FewShotPrompt(plain.tokens, plain.mask, answer)

    def alone(self, position: int, *, size: int = 1) -> "FewShotPrompt":
        """The last ``size`` tokens up to ``position``, and the token that follows them."""
        plain = super().alone(position, size=size)
        answer = None if self.answer is None else self._window(self.answer, position, size, extra=1)
        return FewShotPrompt(plain.tokens, plain.mask, answer)


def _classes(
    pairs: Sequence[tuple[str, str]], words: list[str], shots: int, labels: str, balanced: bool
) -> Int[np.ndarray, " pair"]:
    """Number of each pair's answer in ``words``; raise if the pairs do not suffice for the shots."""
    items = {pair[0] for pair in pairs}
    if len(items) < len(pairs) or not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise expected("pairs", "pairs of an item and its answer, with different items", pairs[:3])
    fewest = shots + (3 if labels == "shuffled" and shots == 1 else 1)
    if len(pairs) < fewest:
        raise expected("pairs", f"at least {fewest} pairs for {shots} shots", len(pairs))
    classes = np.array([words.index(word) for _, word in pairs], np.int32)
    if labels == "symbols" and not (balanced and shots):
        hint = "give balanced=True and shots"
        raise expected("labels", "examples of every answer if answers are symbols", labels, hint)
    rarest = np.bincount(classes).min()
    if balanced and (shots % len(words) or rarest <= shots // len(words)):
        counts = f"{len(words)} answers, the rarest of {rarest} pairs"
        hint = "give shots that are a multiple of the number of answers, or more pairs of each"
        requirement = f"an equal number of each answer among {shots} examples, and one pair left for the query"
        raise expected("balanced", requirement, counts, hint)
    return classes


class FewShot(AbstractTokens):
    """Different pairs of a table as examples, then the question of another pair, all drawn uniformly.

    The loss is the cross-entropy in nats at the tokens of the answer, and NaN elsewhere. One key gives the same query
    and the same pairs for all ``labels``; with more ``shots`` it gives more pairs beside them. ``labels`` are

    - ``"right"``: those of the table;
    - ``"shuffled"``: each example has the label of the example before it, and the first that of the last; one example
      alone that of a pair outside of the prompt. Of ``balanced`` examples the labels are permuted uniformly, so that
      they say nothing about the items. The query's answer is right;
    - ``"symbols"``: each answer of the table, the query's too, is replaced by a symbol, which symbol is drawn anew for
      each prompt. That is a question with an answer where examples are ``balanced``.

    Attributes:
        prefix: Tokens before the first example.
        questions: Tokens of each pair up to its label; the rest is -1.
        answers: Tokens of each different answer; the rest is -1.
        classes: Number of each pair's answer.
        symbols: Tokens of each symbol; the rest is -1.
        end: Tokens after a label.
        shots: Examples before the query (static).
        labels: ``"right"``, ``"shuffled"`` or ``"symbols"`` (static).
        balanced: Whether examples have each answer of the table equally often (static).
        tokens: Tokens of the longest prompt, to which all are padded (static).
        vocabulary: How many tokens there are (static).
        beginning: Ids with which each prompt begins, such as a BOS token; ``prefix`` does not have them (static).

    Source: few-shot prompts of pairs [Brown20]; labels that are not right [Min22]; new symbols [Wei23, Pan23].
    """

    prefix: Int[Array, " before"]
    questions: Int[Array, "pair asked"]
    answers: Int[Array, "answer answered"]
    classes: Int[Array, " pair"]
    symbols: Int[Array, "symbol marked"]
    end: Int[Array, " after"]
    shots: int = eqx.field(static=True)
    labels: Literal["right", "shuffled", "symbols"] = eqx.field(static=True)
    balanced: bool = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    vocabulary: int = eqx.field(static=True)
    beginning: tuple[int, ...] = eqx.field(static=True, default=())

    @classmethod
    def from_pairs(
        cls,
        pairs: Sequence[tuple[str, str]],
        tokenizer: Any,
        *,
        shots: int,
        labels: Literal["right", "shuffled", "symbols"] = "right",
        balanced: bool = False,
        template: str = "{} -> {}\n",
        prefix: str = "",
        symbols: Sequence[str] = SYMBOLS,
        vocabulary: int | None = None,
        bos: bool = True,
    ) -> "FewShot":
        """Prompts from ``pairs`` of an item and its answer, in tokens of the package ``tokenizers``.

        ``template`` has ``{}`` for the item and for the answer; a space before one belongs to its first token.
        ``prefix`` stands before all. Special tokens are left out, but what the tokenizer puts before each text, such as
        a BOS token, begins each prompt, unless ``prefix`` begins with it; ``bos=False`` leaves it out too, for queries
        that go on with a context. ``symbols`` are at least as many as the table has answers. ``vocabulary`` is that of
        a model that has more tokens than its tokenizer; None: the tokenizer's.

        Raises:
            InputError: The table is too small for ``shots``, an item comes twice, symbols have no answer, or the
                tokens of a prompt are not those of its parts, one after the other.

        Warns:
            ResultWarning: The tokenizer truncates, pads or draws its splits, which is switched off on a copy.
        """
        require_flag("bos", bos)
        tokenizer = plain(tokenizer)
        require_integer("shots", shots, least=0)
        require_known("labels", labels, LABELS)
        items, words = [pair[0] for pair in pairs], list(dict.fromkeys(pair[-1] for pair in pairs))
        classes = _classes(pairs, words, shots, labels, balanced)
        if labels == "symbols" and (len(set(symbols)) < len(words) or not set(symbols).isdisjoint(words)):
            raise expected("symbols", f"at least {len(words)} different symbols that are not answers", list(symbols))

        script = _Script(tokenizer, template)
        script.require_parts(prefix, pairs, symbols if labels == "symbols" else ())
        questions, answers = [script.question(item) for item in items], [script.answer(word) for word in words]
        for name, rows in (("items", questions), ("answers", answers)):
            if len(set(map(tuple, rows))) < len(rows):
                raise expected("pairs", f"{name} that differ in their tokens", "two with the same tokens", "see <unk>")
        marks = [script.answer(symbol) for symbol in symbols] if labels == "symbols" else [[]]
        start, end = script.ids(prefix), script.ids(script.end)
        begin = beginning(tokenizer) if bos else ()
        if tuple(start[: len(begin)]) == begin:
            begin = ()
        question_tokens = np.sort([len(row) for row in questions])[-shots - 1 :].sum()
        lengths = [len(answers[i]) for i in classes] if labels != "symbols" else [max(map(len, marks))] * len(pairs)
        answer_tokens = np.sort(lengths)[-shots - 1 :].sum()
        tokens = int(len(begin) + len(start) + question_tokens + answer_tokens + shots * len(end))
        size = tokenizer.get_vocab_size() if vocabulary is None else vocabulary
        for row in (begin, start, end, *questions, *answers, *marks):
            in_vocabulary("tokens", np.array(row, np.int32), size, "a larger vocabulary=")
        arrays = (
            _rows([start])[0],
            _rows(questions),
            _rows(answers),
            jnp.asarray(classes),
            _rows(marks),
            _rows([end])[0],
        )
        return cls(*arrays, shots, labels, balanced, tokens, size, begin)

    def draw(self, *, key: PRNGKeyArray) -> tuple[Int[Array, " shot"], Int[Array, " shot"], Int[Array, ""]]:
        """Indices of the examples' pairs, of the pairs whose labels the examples show, and of the query's pair."""
        require_key(key)
        of_pairs, of_labels = jax.random.split(key)
        order = jax.random.permutation(of_pairs, len(self.classes))
        return (*self._shown(order[1:], of_labels), order[0])

    def _shown(self, others: Int[Array, " pair"], key: PRNGKeyArray) -> tuple[Int[Array, " shot"], Int[Array, " shot"]]:
        """Indices of the examples' pairs, the first of ``others``, and of the pairs whose labels they show."""
        if self.balanced:
            same = jnp.tril(self.classes[others][:, None] == self.classes[others][None], -1)
            early = jnp.sum(same, axis=1) < self.shots // len(self.answers)
            others = others[jnp.argsort(~early, stable=True)]
        examples = others[: self.shots][::-1]
        if self.labels != "shuffled":
            return examples, examples
        if self.balanced:
            return examples, jax.random.permutation(key, examples)
        return examples, jnp.roll(examples, 1) if self.shots != 1 else others[1:2]

    def prompt_after(self, query: Int[Array, ""], pool: Int[Array, " pair"], *, key: PRNGKeyArray) -> FewShotPrompt:
        """A prompt of one query, whose examples are drawn from the pairs of a ``pool`` other than it.

        The pool has at least one pair more than the prompt has examples.
        """
        of_pairs, of_labels = jax.random.split(key)
        others = jax.random.permutation(of_pairs, pool)
        others = others[jnp.argsort(others == query, stable=True)]
        examples, shown = self._shown(others, of_labels)
        return self.prompt(examples, self.answers[self.classes[shown]], query, self.answers[self.classes[query]])

    def sample(self, *, key: PRNGKeyArray) -> FewShotPrompt:
        """One prompt."""
        require_key(key)
        examples, shown, query = self.draw(key=key)
        answers = self.shown_answers(key=key)
        return self.prompt(examples, answers[self.classes[shown]], query, answers[self.classes[query]])

    def examples(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """The examples of the prompt of a key, as a context of :func:`~icllab.diagnostics.contexts.maps.context_map`.

        The ``end`` of the last is missing: queries begin with it, such as prompts of no ``shots`` whose prefix it is.
        Two tokens that do not count stand in place of the query.
        """
        prompt, query = self.sample(key=key), self.draw(key=jax.random.clone(key))[2]
        before = prompt.query + 1 - jnp.sum(self.questions[query] != EMPTY) - jnp.sum(self.end != EMPTY)
        return TokenPrompt(prompt.tokens, jnp.arange(self.tokens) < before + 2)

    def shown_answers(self, *, key: PRNGKeyArray) -> Int[Array, "answer token"]:
        """Tokens that stand for each answer of the table in the prompt of a key: its own tokens, or a symbol's."""
        require_key(key)
        if self.labels != "symbols":
            return self.answers
        return jax.random.permutation(jax.random.fold_in(key, 1), self.symbols)[: len(self.answers)]

    def prompt(
        self,
        examples: Int[Array, " shot"],
        labels: Int[Array, "shot token"],
        query: Int[Array, ""],
        answer: Int[Array, " token"],
    ) -> FewShotPrompt:
        """Build the prompt of pairs by their numbers, with labels and answer as tokens; -1 marks padding."""
        ends = jnp.broadcast_to(self.end, (len(examples), len(self.end)))
        shown = jnp.concatenate([self.questions[examples], labels, ends], axis=1).ravel()
        begin = [jnp.array(self.beginning, jnp.int32)] if self.beginning else []
        before = jnp.concatenate([*begin, self.prefix, shown, self.questions[query]])
        ids = jnp.concatenate([before, answer])
        real = ids != EMPTY
        places = jnp.where(real, jnp.cumsum(real) - 1, self.tokens)
        tokens = jnp.zeros(self.tokens, jnp.int32).at[places].set(ids, mode="drop")
        index = jnp.arange(self.tokens)
        mask = index < jnp.sum(real)
        return FewShotPrompt(tokens, mask, mask & (index >= jnp.sum(before != EMPTY)))

    def alternatives(self, prompt: FewShotPrompt) -> FewShotPrompt:
        """The prompt with its answer replaced by each answer of the table in turn, stacked and padded to one length.

        Raises:
            InputError: Labels are symbols.
        """
        if self.labels == "symbols":
            raise expected("labels", "answers of the table", self.labels)
        begin, longest = prompt.query + 1, self.answers.shape[1]
        tokens = jnp.pad(prompt.tokens, (0, longest - 1))  # another answer may have more tokens than the longest prompt
        index = jnp.arange(len(tokens))

        def written(answer: Array) -> FewShotPrompt:
            size = jnp.sum(answer != EMPTY)
            place = jnp.clip(index - begin, 0, longest - 1)
            mask = index < begin + size
            return FewShotPrompt(jnp.where(index < begin, tokens, answer[place]), mask, mask & (index >= begin))

        return jax.vmap(written)(self.answers)

    def log_likelihood(self, prediction: Array, prompt: FewShotPrompt) -> Float[Array, ""]:
        r"""Log-likelihood of the answer in nats: :math:`\ln p` of each token given those before it, summed."""
        return -jnp.sum(jnp.where(self._scored(prompt), self.loss(prediction, prompt), 0))

    def exact_match(self, prediction: Array, prompt: FewShotPrompt) -> Float[Array, ""]:
        """1 if every token of the answer has the largest logit, given the tokens before it, else 0."""
        return jnp.min(jnp.where(self._scored(prompt), self.accuracy(prediction, prompt), 1))

    @staticmethod
    def _scored(prompt: FewShotPrompt) -> Bool[Array, " position"]:
        return jnp.ones(prompt.positions, bool) if prompt.scored is None else prompt.scored


class _Script:
    """The parts of a template in tokens. A space at the end of a part is moved to the next part."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        parts = template.split("{}") if isinstance(template, str) else []
        if len(parts) != 3 or not parts[1] or not parts[2]:
            hint = "such as '{} -> {}\\n'"
            raise expected("template", "{} for the item and for the answer, and text after each", template, hint)
        self.tokenizer, self.template = tokenizer, template
        self.head, self.middle, self.end = parts
        self.spaces = [" " * (len(part) - len(part.rstrip(" "))) for part in parts]

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids) if text else []

    def question(self, item: str) -> list[int]:
        head, middle = self.head.rstrip(" "), self.middle.rstrip(" ")
        return self.ids(head) + self.ids(self.spaces[0] + item) + self.ids(middle)

    def answer(self, word: str) -> list[int]:
        return self.ids(self.spaces[1] + word)

    def require_parts(self, prefix: str, pairs: Sequence[tuple[str, ...]], symbols: Sequence[str]) -> None:
        """Raise unless tokenizing a prompt gives the tokens of its parts, one after the other.

        Each item stands with its own label, with the next one's and, in turn, with each symbol, and before the next.
        """
        shifted = [*pairs[1:], *pairs[:1]]
        for i, ((item, word), (following, other)) in enumerate(zip(pairs, shifted, strict=True)):
            marks = [symbols[i % len(symbols)]] if symbols else []
            for label in (word, other, *marks):
                text = prefix + self.template.format(item, label) + self.template.format(following, other)
                example = self.question(item) + self.answer(label) + self.ids(self.end)
                follows = self.question(following) + self.answer(other) + self.ids(self.end)
                if self.ids(text) != self.ids(prefix) + example + follows:
                    hint = "another template=, such as one with a space before each {} and a newline at its end"
                    raise expected(
                        "template", f"tokens that end where the parts of {text!r} end", "a token across two parts", hint
                    )


def _rows(rows: list[list[int]]) -> Int[Array, "row token"]:
    size = max(map(len, rows))
    return jnp.asarray(
        np.array([[*row, *[EMPTY] * (size - len(row))] for row in rows], np.int32).reshape(len(rows), size)
    )
