"""Texts and words of several languages: documents that are translations of each other, and lists of basic words."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

from experiments import data

LANGUAGES = {
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "it": "italian",
    "nl": "dutch",
    "pt": "portuguese",
    "sv": "swedish",
}
"""Languages of the documents, by code, as the stemmer calls them."""

EUROPARL = (
    "europarl/europarl_q42000_11lang.jsonl.gz (lines {id, lang, text}, the same ids in every language) and "
    "europarl/stopwords_11lang.json ({lang: [words]}). Make them from the Europarl corpus (statmt.org/europarl, its "
    "common test set, five aligned lines a document) and the Snowball lists of stop words"
)
SWADESH = (
    "strings/swadesh207_13lang.json ({lang: 207 lists of synonyms}). Make it from the PanLex Swadesh lists "
    "(panlex.org, also a corpus of NLTK)"
)


def europarl(directory: Path | None) -> dict[str, list[list[str]]]:
    """Load the aligned documents as stems, without stop words.

    Args:
        directory: the folder of the data sets.

    Returns:
        {language: [document: [stem]]}; documents of one number are translations of each other.

    Raises:
        ValueError: no such files, which says where to get them; damaged ones; the stemmer is not installed.
    """
    texts: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
    lines = data.read(directory, "europarl/europarl_q42000_11lang.jsonl.gz", EUROPARL, _json_lines)
    for record in lines:
        texts.setdefault(record["lang"], {})[record["id"]] = record["text"]
    ids = sorted(texts["sv"])
    whole = bool(ids) and all(sorted(texts[language]) == ids for language in LANGUAGES)
    if not whole:
        raise ValueError(
            f"data must hold the same documents in {len(LANGUAGES)} languages; got others. It is {EUROPARL}."
        )
    stop = data.read(directory, "europarl/stopwords_11lang.json", EUROPARL, lambda file: json.loads(file.read_bytes()))
    return {
        language: [_stems(texts[language][name], language, frozenset(stop[language])) for name in ids]
        for language in LANGUAGES
    }


def swadesh(directory: Path | None) -> dict[str, list[list[str]]]:
    """Load lists of basic words: {language: [concept: [synonym]]}, lower case, without phonetic spellings and glosses.

    A word with a digit, a capital inside, a question mark, a tilde or a blank is no spelling of the language; where a
    concept has no other, its words stay as they are, but for blanks.

    Raises:
        ValueError: no such file, which says where to get it, or a damaged one.
    """
    raw = data.read(directory, "strings/swadesh207_13lang.json", SWADESH, lambda file: json.loads(file.read_bytes()))
    if len({len(concepts) for concepts in raw.values()}) != 1:
        raise ValueError(f"data must hold as many concepts in every language; got others. It is {SWADESH}.")
    return {language: [_spellings(words) for words in concepts] for language, concepts in raw.items()}


def _spellings(words: list[str]) -> list[str]:
    good = [word for word in words if re.fullmatch(r"\w[^\W\d_A-Z]*", word)]
    kept = good or [re.sub(r"[\s\d.?~]+", "", word) for word in words]
    return sorted({word.lower() for word in kept if word})


def _stems(text: str, language: str, stop: frozenset[str]) -> list[str]:
    stem = _stemmer(LANGUAGES[language])
    return [stem(word) for word in re.findall(r"\w+", text.lower()) if word not in stop]


def _stemmer(language: str) -> Callable[[str], str]:
    try:
        import snowballstemmer
    except ImportError:
        raise ValueError(
            "documents must be stemmed; got a Python without the package snowballstemmer. "
            "Install it: pip install 'kbpjax[experiments]'."
        ) from None
    return snowballstemmer.stemmer(language).stemWord


def _json_lines(file: Path) -> list[dict[str, str]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
