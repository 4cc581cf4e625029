"""Documents in several languages that are translations of each other."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

from experiments.lib import datasets

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
    lines = datasets.read(directory, "europarl/europarl_q42000_11lang.jsonl.gz", EUROPARL, _json_lines)
    for record in lines:
        texts.setdefault(record["lang"], {})[record["id"]] = record["text"]
    ids = sorted(texts["sv"])
    whole = bool(ids) and all(sorted(texts[language]) == ids for language in LANGUAGES)
    if not whole:
        raise ValueError(
            f"data must hold the same documents in {len(LANGUAGES)} languages; got others. It is {EUROPARL}."
        )
    stop = datasets.read(
        directory, "europarl/stopwords_11lang.json", EUROPARL, lambda file: json.loads(file.read_bytes())
    )
    return {
        language: [_stems(texts[language][name], language, frozenset(stop[language])) for name in ids]
        for language in LANGUAGES
    }


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
