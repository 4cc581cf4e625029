import itertools
import math
from fractions import Fraction
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.kernels.base import Normalized, diagonal
from kbpjax.kernels.strings import Alphabet, LocalAlignment, Mismatch, Spectrum, Subsequence, mask
from tests.refusals import not_refused

DNA = Alphabet("ACGT")
gram = jax.jit(kbp.gram, static_argnames="block_size")
SCORES = np.array([[3.0, -1, 0, -1], [-1, 4, -1, 0], [0, -1, 3, -1], [-1, 0, -1, 4]])
KERNELS = {
    "spectrum": Spectrum(2),
    "mismatch": Mismatch(3, 1, 4),
    "subsequence": Subsequence(3, 0.6),
    "alignment": LocalAlignment(SCORES, gap_open=2.0, gap_extend=0.5, beta=0.3),
}


@pytest.fixture(params=KERNELS, ids=str)
def kernel(request):
    return KERNELS[request.param]


def random_strings(count, longest, seed=0, symbols="ACGT"):
    """Strings of all lengths from 1, some of them equal."""
    rng = np.random.default_rng(seed)
    strings = ["".join(rng.choice(list(symbols), rng.integers(1, longest + 1))) for _ in range(count)]
    strings[-1] = strings[0]
    return strings


STRINGS = [*random_strings(8, 8), "A", "CC"]
CODES = DNA.encode(STRINGS)


# --- twins, from the definitions --------------------------------------------------------------------------------------


def substrings(string, order):
    return [string[i : i + order] for i in range(len(string) - order + 1)]


def mismatch_twin(x, y, order, mismatches):
    """Count for every string over the alphabet the substrings within reach."""

    def feature(string, target):
        return sum(sum(a != b for a, b in zip(target, u)) <= mismatches for u in substrings(string, order))

    return sum(feature(x, b) * feature(y, b) for b in itertools.product(DNA.symbols, repeat=order))


def subsequence_twin(x, y, order, decay):
    """List all subsequences (Lodhi et al. 2002, definition 1)."""

    def features(string):
        found = {}
        for places in itertools.combinations(range(len(string)), order):
            u = "".join(string[i] for i in places)
            found[u] = found.get(u, 0) + decay ** (places[-1] - places[0] + 1)
        return found

    of_x, of_y = features(x), features(y)
    return sum(of_x[u] * of_y.get(u, 0) for u in of_x)


def recursion_twin(x, y, order, decay):
    """The recursion of Lodhi et al. (2002), definition 2, in exact arithmetic."""

    @cache
    def inner(n, i, j):
        if n == 0:
            return Fraction(1)
        if min(i, j) < n:
            return Fraction(0)
        ended = (inner(n - 1, i - 1, l) * decay ** (j - l + 1) for l in range(j) if y[l] == x[i - 1])
        return decay * inner(n, i - 1, j) + sum(ended, Fraction(0))

    pairs = ((i, j) for i in range(len(x)) for j in range(len(y)) if x[i] == y[j])
    return sum((inner(order - 1, i, j) * decay**2 for i, j in pairs), Fraction(0))


def alignment_twin(x, y, scores, gap_open, gap_extend, beta):
    """List all alignments: as many places of either string, paired in order."""

    def gap(n):
        return 0 if n == 0 else gap_open + gap_extend * (n - 1)

    total = 1.0  # pairs nothing
    for count in range(1, min(len(x), len(y)) + 1):
        for i in itertools.combinations(range(len(x)), count):
            for j in itertools.combinations(range(len(y)), count):
                score = sum(scores[DNA.symbols.index(x[a])][DNA.symbols.index(y[b])] for a, b in zip(i, j))
                gaps = sum(gap(q - p - 1) for places in (i, j) for p, q in itertools.pairwise(places))
                total += math.exp(beta * (score - gaps))
    return total


def cosine(twin):
    return lambda x, y: twin(x, y) / math.sqrt(twin(x, x) * twin(y, y))


def twin_gram(twin, strings):
    return np.array([[twin(x, y) for y in strings] for x in strings], float)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_spectrum_equals_twin(order):
    expected = twin_gram(lambda x, y: mismatch_twin(x, y, order, 0), STRINGS)
    np.testing.assert_array_equal(gram(Spectrum(order), CODES, CODES), expected)
    assert expected.any()


@pytest.mark.parametrize(("order", "mismatches"), [(1, 1), (3, 1), (3, 2), (4, 2), (4, 4)])
def test_mismatch_equals_twin(order, mismatches):
    expected = twin_gram(lambda x, y: mismatch_twin(x, y, order, mismatches), STRINGS)
    np.testing.assert_array_equal(gram(Mismatch(order, mismatches, 4), CODES, CODES), expected)


@pytest.mark.parametrize("num_symbols", [1, 2])
def test_mismatch_of_few_symbols(num_symbols):
    codes = jnp.array([[1, 1, num_symbols, 1]])
    words = list(itertools.product(range(1, num_symbols + 1), repeat=2))
    near = [
        sum(sum(a != b for a, b in zip(u, w)) <= 1 for u in ((1, 1), (1, num_symbols), (num_symbols, 1))) for w in words
    ]
    assert float(gram(Mismatch(2, 1, num_symbols), codes, codes)[0, 0]) == sum(n * n for n in near)


@pytest.mark.parametrize("order", [1, 3, 5])
@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_subsequence_equals_twin(order, decay):
    expected = twin_gram(lambda x, y: subsequence_twin(x, y, order, decay), STRINGS)
    np.testing.assert_allclose(gram(Subsequence(order, decay), CODES, CODES), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("gaps", [(2.0, 0.5), (0.5, 1000.0)])
def test_alignment_equals_twin(gaps):
    strings = [string[:6] for string in STRINGS]
    x = DNA.encode(strings, 8)
    expected = twin_gram(cosine(cache(lambda x, y: alignment_twin(x, y, SCORES, *gaps, 0.3))), strings)
    result = gram(LocalAlignment(SCORES, *gaps, beta=0.3), x, x)
    np.testing.assert_allclose(result, expected, rtol=1e-13)


# --- published numbers ------------------------------------------------------------------------------------------------


def test_words_of_lodhi():
    x = Alphabet("abcrt").encode(["cat", "car", "bat", "bar"])
    for decay in (0.1, 0.5, 0.9):
        matrix = gram(Subsequence(2, decay), x, x)
        np.testing.assert_allclose(matrix[0], [2 * decay**4 + decay**6, decay**4, decay**4, 0], rtol=1e-13)
        cosines = gram(Normalized(Subsequence(2, decay)), x, x)
        np.testing.assert_allclose(cosines[0], [1, 1 / (2 + decay**2), 1 / (2 + decay**2), 0], rtol=1e-13)


SENTENCES = ["science is organized knowledge", "wisdom is organized life"]
PUBLISHED = {2: 0.580, 3: 0.478, 4: 0.439, 5: 0.406, 6: 0.370}
"""Lodhi et al. 2002, section 3, at decay 0.5. Their K_1 repeats K_2, while by their definition 1 it is 0.849."""


@pytest.mark.parametrize("order", range(1, 7))
def test_sentences_of_lodhi(order):
    x = Alphabet.of(SENTENCES).encode(SENTENCES)
    result = float(gram(Normalized(Subsequence(order, 0.5)), x, x)[0, 1])
    a, b = SENTENCES
    twins = [float(recursion_twin(*pair, order, Fraction(1, 2))) for pair in ((a, b), (a, a), (b, b))]
    assert result == pytest.approx(twins[0] / math.sqrt(twins[1] * twins[2]), rel=1e-12)
    if order in PUBLISHED:
        assert result == pytest.approx(PUBLISHED[order], abs=1e-3)


# --- what holds for all -----------------------------------------------------------------------------------------------


def test_gram_is_symmetric_and_positive_semidefinite(kernel):
    x = DNA.encode(random_strings(200, 8))
    matrix = np.asarray(gram(kernel, x, x))
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[0] >= -1e-13 * eigenvalues[-1]
    assert eigenvalues[-1] > 0


def test_padding_does_not_matter(kernel):
    wide = DNA.encode(STRINGS, 60)
    np.testing.assert_allclose(gram(kernel, wide, wide), gram(kernel, CODES, CODES), rtol=1e-13, atol=0)


def test_strings_shorter_than_the_order():
    codes = DNA.encode(["AC", "ACG"], 8)
    for short in (Spectrum(3), Mismatch(3, 1, 4), Subsequence(3, 0.5)):
        assert not gram(short, codes[:1, :2], codes[:1, :2]).any() and not gram(short, codes[:1], codes[1:]).any()
    np.testing.assert_allclose(gram(Normalized(short), codes, codes), [[0, 0], [0, 1]], rtol=1e-15)


@pytest.mark.parametrize("name", KERNELS)
def test_single_precision_on_long_strings(name):
    kernel = {"subsequence": Subsequence(6, 0.4)}.get(name, KERNELS[name])
    rng = np.random.default_rng(3)
    base = rng.integers(1, 5, 60)
    x = np.stack([np.where(rng.random(60) < share, rng.integers(1, 5, 60), base) for share in np.linspace(0, 1, 10)])
    exact = gram(kernel, jnp.asarray(x), jnp.asarray(x))
    single = gram(kernel, jnp.asarray(x, jnp.float32), jnp.asarray(x, jnp.float32))
    assert exact.dtype == jnp.float64 and single.dtype == jnp.float32
    np.testing.assert_allclose(single, exact, rtol=2e-4 if name == "alignment" else 1e-5)


def test_alignments_beyond_the_largest_float():
    x = jnp.asarray(np.stack([np.full(60, 1), np.resize([1, 1, 2], 60)]), jnp.float32)
    kernel = LocalAlignment(20 * np.eye(4) - 10, 5.0, 1.0, beta=1.0)  # k(x, x) > exp(600)

    @jax.jit
    @jax.value_and_grad
    def check(beta):
        return gram(eqx.tree_at(lambda k: k.beta, kernel, beta), x, x).sum()

    value, slope = check(jnp.float32(1.0))
    assert 2 <= value < 3 and np.isfinite(slope)


PARAMETERS = {"subsequence": "decay", "alignment": "beta"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradient_in_the_parameter(name):
    x = DNA.encode(["GATTACA", "GATACA", "CCC", "GATTACA"])
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))

    def value(parameter):
        kernel = eqx.tree_at(lambda k: getattr(k, PARAMETERS[name]), KERNELS[name], parameter)
        return jnp.sum(weights * gram(kernel, x, x))

    value = jax.jit(jax.value_and_grad(value))
    for at in (0.2, 0.9):
        (up, _), (down, _), (_, slope) = value(at + 1e-6), value(at - 1e-6), value(at)
        np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-7)


def test_second_derivative():
    x = DNA.encode(["GATTACA", "GATACA"])
    slope = jax.jit(jax.value_and_grad(jax.grad(lambda decay: Subsequence(3, decay)(*x))))
    (up, _), (down, _), (_, curvature) = slope(0.5 + 1e-6), slope(0.5 - 1e-6), slope(0.5)
    np.testing.assert_allclose(curvature, (up - down) / 2e-6, rtol=1e-8)


def test_gradient_of_the_cosine_of_unlike_and_short_strings():
    x = DNA.encode(["AAAA", "CCCC", "A"]).astype(jnp.float32)
    slope = jax.jit(jax.grad(lambda decay: jnp.sum(gram(Normalized(Subsequence(2, decay)), x, x))))
    assert slope(0.5) == pytest.approx(0, abs=1e-5)  # all cosines are 0 or 1
    assert np.isfinite(slope(1e-3))


def test_gram_by_blocks_and_jit_and_loop_are_equal(kernel):
    matrix = kbp.gram(kernel, CODES, CODES)
    few = jax.jit(lambda kernel, x: (kbp.gram(kernel, x, x, block_size=3), diagonal(kernel, x), kernel(x[1], x[2])))
    for compiled, expected in zip(few(kernel, CODES), (matrix, np.diag(matrix), matrix[1, 2]), strict=True):
        np.testing.assert_allclose(compiled, expected, rtol=1e-13)


def test_codes_of_any_type(kernel):
    types = [np.uint8, np.int64, np.float32, np.float64]
    x = [np.asarray(CODES).astype(dtype) for dtype in types]
    for of in x:
        kernel.check("x", jnp.asarray(of))
    results = jax.jit(lambda kernel, x: [kbp.gram(kernel, of, of) for of in x])(kernel, x)
    for dtype, result in zip(types, results, strict=True):
        np.testing.assert_allclose(result, gram(kernel, CODES, CODES), rtol=1e-5)
        assert result.dtype == (dtype if np.issubdtype(dtype, np.floating) else np.float64)


def test_backward_pass_keeps_a_number_for_each_pair():
    def value(kernel):
        return jnp.sum(kbp.gram(kernel, CODES, CODES))

    _, backward = jax.vjp(value, KERNELS["subsequence"])
    assert sum(leaf.size for leaf in jax.tree.leaves(backward)) <= len(CODES) ** 2 + 10


# --- encoding and errors ----------------------------------------------------------------------------------------------


def test_encoding_there_and_back():
    strings = ["naïve", "λ", "日本語", "a b", "\0"]
    alphabet = Alphabet.of(strings)
    codes = alphabet.encode(strings, 8)
    assert alphabet.decode(codes) == strings and codes.shape == (5, 8)
    assert alphabet.decode(codes.astype(jnp.float32)) == strings
    assert list(alphabet.symbols) == sorted(set("".join(strings))) and alphabet.num_symbols == codes.max()
    np.testing.assert_array_equal(mask(codes).sum(axis=1), [len(s) for s in strings])
    assert Alphabet.of(np.array(["ab", "c"])) == Alphabet("abc") == Alphabet.of(("cb", "a"))


ERRORS = [
    (lambda: Alphabet(""), "symbols: must hold at least one symbol; got ''"),
    (lambda: Alphabet("abca"), "symbols: must hold each symbol once; got .'a'. more than once"),
    (lambda: Alphabet(["a"]), "symbols: must be a str; got list"),
    (lambda: Alphabet.of([]), "strings: must hold at least one string"),
    (lambda: Alphabet.of("abc"), "strings: must be a list of strings; got str"),
    (lambda: DNA.encode(7), "strings: must be a list of strings; got int"),
    (lambda: DNA.encode(["A", 3]), "strings: must be a list of strings; got int at 1"),
    (lambda: DNA.encode(["A", ""]), "strings: must have at least one symbol; got none in string 1"),
    (lambda: DNA.encode(["A", "CAN"]), "strings: must have symbols of the alphabet; got 'N' in string 1, 'CAN'"),
    (
        lambda: DNA.encode(["A", "CAT"], 2),
        "strings: must have at most length = 2 symbols; got 3 symbols in string 1",
    ),
    (lambda: DNA.encode(["A"], 0), "length: must be an integer >= 1"),
    (lambda: DNA.decode(jnp.array([[1, 5]])), "codes: must be codes of 4 symbols; got a code 5"),
    (lambda: Spectrum(0), "order: must be an integer >= 1"),
    (lambda: Mismatch(3, 4, 4), "mismatches: must be an integer from 0 to order = 3; got 4"),
    (lambda: Mismatch(3, -1, 4), "mismatches: must be an integer"),
    (lambda: Mismatch(3, 1, 0), "num_symbols: must be an integer >= 1"),
    (lambda: Subsequence(0, 0.5), "order: must be an integer >= 1"),
    (lambda: Subsequence(2, 0.0), "decay: must be finite and > 0"),
    (lambda: Subsequence(2, 1.1), "decay: must be finite and > 0 and <= 1"),
    (lambda: LocalAlignment(np.ones((2, 3)), 1.0, 1.0, 0.5), r"scores: must be a matrix \[symbol, symbol\]"),
    (lambda: LocalAlignment([[1.0, 2.0], [1.0, 1.0]], 1.0, 1.0, 0.5), "scores: must be symmetric; got entries"),
    (
        lambda: LocalAlignment([[1.0, 2.0], [2.0, 1.0]], 1.0, 1.0, 0.5),
        r"scores: must have exp\(beta scores\) positive",
    ),
    (lambda: LocalAlignment([[np.inf]], 1.0, 1.0, 0.5), "scores: must be finite"),
    (lambda: LocalAlignment(SCORES, -1.0, 1.0, 0.5), "gap_open: must be finite and >= 0"),
    (lambda: LocalAlignment(SCORES, 1.0, np.nan, 0.5), "gap_extend: must be finite and >= 0"),
    (lambda: LocalAlignment(SCORES, 1.0, 1.0, 0.0), "beta: must be finite and > 0"),
]


def test_errors():
    assert not not_refused({text: (act, f"^{text}") for act, text in ERRORS})


NO_STRINGS = [
    ([[1, 0, 2]], r"must have padding \(0\) after the last symbol only; got 0 before a symbol in string \[0\]"),
    ([[1, 2], [0, 0]], r"must have at least one symbol; got none in string \[1\]"),
    ([[1, -2]], "must be integer codes >= 0; got dtype int64, values from -2 to 1"),
    ([[1.0, 0.5]], "must be integer codes >= 0"),
    ([[1.0, np.nan]], "must be finite; got 1 NaN"),
    ([1, 2], r"must be strings \[sample, length\]; got shape"),
    ([[[1, 2]]], r"must be strings \[sample, length\]; got shape"),
]


def test_points_that_are_no_strings(kernel):
    def act(codes):
        kbp.gram(kernel, jnp.asarray(codes), jnp.asarray(codes))

    assert not not_refused({str(codes): (partial(act, codes), f"^x: {rule}") for codes, rule in NO_STRINGS})


@pytest.mark.parametrize("name", ["mismatch", "alignment"])
def test_codes_beyond_the_alphabet(name):
    codes = jnp.array([[1, 5]])
    with pytest.raises(ValueError, match="^x: must be codes of 4 symbols; got a code 5"):
        kbp.gram(KERNELS[name] + Spectrum(1), codes, codes)


def test_single_points_of_other_shapes(kernel):
    with pytest.raises(ValueError, match="^x, y: must be two points of one shape"):
        kernel(jnp.array([1, 2]), jnp.array([1, 2, 0]))
    with pytest.raises(ValueError, match="^x, y: must be two encoded strings of one length; got shapes"):
        kernel(jnp.array(1), jnp.array(1))


# --- in a model -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_chain_of_strings_learns_its_topics():
    """Each sample has three words of one topic; the first word tells the topic of the last."""
    topics = [["ACACA", "CACAC", "ACAC"], ["GTGTG", "TGTG", "GTGTGT"]]
    rng = np.random.default_rng(0)
    strings = [str(rng.choice(topics[topic])) for topic in rng.integers(2, size=30) for _ in range(3)]
    samples = DNA.encode(strings, 6).reshape(30, 3, 6)
    graph = kbp.chain_graph(3)
    kernel = Normalized(Subsequence(2, 0.7))
    candidates = DNA.encode([word for words in topics for word in words], 6)

    @jax.jit
    def answers(samples, seen):
        model = kbp.fit(kbp.pool(graph, samples), kernel=kernel, rule=kbp.FullRank(), ridge=1e-3)

        def answer(word):
            evidence = kbp.clamp(model, graph, [0], word[None])
            solution = kbp.run_tree(model, graph, evidence)
            return solution.converged, kbp.beliefs(model, graph, evidence, solution, candidates).weights

        return jax.vmap(answer)(seen)

    for topic, (converged, weights) in enumerate(zip(*answers(samples, candidates[::3]), strict=True)):
        assert converged
        assert np.argmax(weights[0]) == 3 * topic  # the word that it is clamped at
        assert weights[2].reshape(2, 3).sum(axis=1)[topic] > 0.9
