"""Lists of basic words in several languages."""

import json
import re
from pathlib import Path

from experiments.lib import datasets

SWADESH = (
    "strings/swadesh207_13lang.json ({lang: 207 lists of synonyms}). Make it from the PanLex Swadesh lists "
    "(panlex.org, also a corpus of NLTK)"
)


def swadesh(directory: Path | None) -> dict[str, list[list[str]]]:
    """Load lists of basic words: {language: [concept: [synonym]]}, lower case, without phonetic spellings and glosses.

    A word with a digit, a capital inside, a question mark, a tilde or a blank is no spelling of the language; where a
    concept has no other, its words stay as they are, but for blanks.

    Raises:
        ValueError: no such file, which says where to get it, or a damaged one.
    """
    raw = datasets.read(
        directory, "strings/swadesh207_13lang.json", SWADESH, lambda file: json.loads(file.read_bytes())
    )
    if len({len(concepts) for concepts in raw.values()}) != 1:
        raise ValueError(f"data must hold as many concepts in every language; got others. It is {SWADESH}.")
    return {language: [_spellings(words) for words in concepts] for language, concepts in raw.items()}


def _spellings(words: list[str]) -> list[str]:
    good = [word for word in words if re.fullmatch(r"\w[^\W\d_A-Z]*", word)]
    kept = good or [re.sub(r"[\s\d.?~]+", "", word) for word in words]
    return sorted({word.lower() for word in kept if word})
