"""Compare the tokens of osrerank/e5-multilingual with sentencepiece's, on 11,221 texts of twelve scripts.

python -m tools.multilingual.tokens MODEL LOCALES PYTHON

MODEL is the model's directory, LOCALES the folder /usr/share/locale of Debian's package iso-codes (apt-get download
iso-codes && dpkg-deb -x iso-codes_*.deb guide), PYTHON an interpreter with sentencepiece. The output is a Markdown
table: the number of texts with different tokens, unchanged, decomposed (NFD), and with inserted marks and emoji.
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
TEXTS_PER_LANGUAGE = 800
INSERTED_CHARACTERS = (
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


def read_translations(folder: Path, language: str) -> list[str]:
    """Return a sample of the unique translations into a language."""
    texts: set[str] = set()
    for path in sorted((folder / language / "LC_MESSAGES").glob("*.mo")):
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # noqa: SLF001 - the only way to all texts
        texts |= {text for key, text in catalogue.items() if key and isinstance(text, str)}
    return random.Random(1).sample(sorted(texts), min(TEXTS_PER_LANGUAGE, len(texts)))


def insert_characters(text: str, generator: random.Random) -> str:
    """Insert a mark or an emoji after every sixth character on average."""
    return "".join(
        letter + (generator.choice(INSERTED_CHARACTERS) if generator.random() < 1 / 6 else "") for letter in text
    )


def count_differences(model: Path, texts: Sequence[str], python: Path) -> int:
    """Return the number of texts whose tokens, with the prefix of documents, differ from sentencepiece's."""
    card = read_card(model)
    builder = InputBuilder.load(model, card)
    command = [str(python), str(REFERENCE), "ids", str(model / TOKENIZER_FILE)]
    prefixed = json.dumps([card.document_prefix + text for text in texts])
    ended = subprocess.run(command, input=prefixed, capture_output=True, check=True, text=True)  # noqa: S603
    documents = builder.tokenise_documents(texts, builder.tokenise_query(""))
    expected = json.loads(ended.stdout)
    return sum(tokens.ids.tolist() != ids for tokens, ids in zip(documents, expected, strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "locales", "python"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    generator = random.Random(2)
    changes: dict[str, Callable[[str], str]] = {
        "unchanged": str,
        "decomposed": lambda text: unicodedata.normalize("NFD", text),
        "with inserted characters": lambda text: insert_characters(text, generator),
    }
    texts_by_language = {language: read_translations(arguments.locales, language) for language in LANGUAGES}
    texts = [text for language_texts in texts_by_language.values() for text in language_texts]
    print(f"{', '.join(f'{language} {len(items)}' for language, items in texts_by_language.items())}\n")
    print("| texts | number | different tokens |\n|---|---|---|")
    for name, change in changes.items():
        n_different = count_differences(arguments.model, [change(text) for text in texts], arguments.python)
        print(f"| {name} | {len(texts):,} | {n_different} |")


if __name__ == "__main__":
    main()
