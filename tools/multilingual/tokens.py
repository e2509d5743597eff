"""Compare the tokens of osrerank/e5-multilingual with sentencepiece's, on 11,221 texts of twelve scripts.

python -m tools.multilingual.tokens MODEL LOCALES PYTHON

MODEL is the model's directory, LOCALES the folder /usr/share/locale of Debian's package iso-codes (apt-get download
iso-codes && dpkg-deb -x iso-codes_*.deb guide), PYTHON the interpreter that has sentencepiece. Printed is a Markdown
table: how many texts differ as they are, decomposed (NFD), and with combining marks and emoji strewn in.
"""

import argparse
import gettext
import json
import random
import subprocess
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import TOKENIZER_FILE

REFERENCE = Path(__file__).with_name("reference.py")
LANGUAGES = ("de", "vi", "ru", "el", "ar", "he", "hi", "bn", "ta", "th", "ka", "am", "ko", "ja", "zh_CN")
EACH = 800
STREWN = (
    *map(chr, range(0x300, 0x370)),
    *("\U0001f600", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd"),
    *(
        "\u2764\ufe0f",
        "1\ufe0f\u20e3",
        "\u200b",
        "\u00a0",
        "\u3000",
        "\t",
        "\ufb01",
        "\u00bd",
        "\uff45",
        "\u2581",
        "\x01",
    ),
)


def texts_of(folder: Path, language: str) -> list[str]:
    """Return different translations into a language."""
    found: set[str] = set()
    for file in sorted((folder / language / "LC_MESSAGES").glob("*.mo")):
        with file.open("rb") as opened:
            catalogue = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]  # noqa: SLF001 - the only way to all texts
        found |= {text for key, text in catalogue.items() if key and isinstance(text, str)}
    return random.Random(1).sample(sorted(found), min(EACH, len(found)))


def strewn(text: str, drawn: random.Random) -> str:
    """Return a text with a mark or an emoji behind every sixth character."""
    return "".join(letter + (drawn.choice(STREWN) if drawn.random() < 1 / 6 else "") for letter in text)


def differing(model: Path, texts: Sequence[str], python: Path) -> int:
    """Return how many texts have other tokens, behind the prefix of documents, than sentencepiece gives."""
    card = read_card(model)
    builder = InputBuilder.load(model, card)
    command = [str(python), str(REFERENCE), "ids", str(model / TOKENIZER_FILE)]
    whole = json.dumps([card.document_prefix + text for text in texts])
    ended = subprocess.run(command, input=whole, capture_output=True, check=True, text=True)  # noqa: S603
    ours = builder.documents(texts, builder.query(""))
    return sum(found.ids.tolist() != theirs for found, theirs in zip(ours, json.loads(ended.stdout), strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "locales", "python"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    drawn = random.Random(2)
    forms: dict[str, Callable[[str], str]] = {
        "as they are": str,
        "decomposed": lambda text: unicodedata.normalize("NFD", text),
        "strewn": lambda text: strewn(text, drawn),
    }
    languages = {language: texts_of(arguments.locales, language) for language in LANGUAGES}
    texts = [text for found in languages.values() for text in found]
    print(f"{', '.join(f'{language} {len(found)}' for language, found in languages.items())}\n")
    print("| texts | how many | differ |\n|---|---|---|")
    for name, form in forms.items():
        differences = differing(arguments.model, [form(text) for text in texts], arguments.python)
        print(f"| {name} | {len(texts):,} | {differences} |")


if __name__ == "__main__":
    main()
