"""Rerank texts that came from anywhere: another database, a file, a list.

python docs/examples/rerank_texts.py "what causes low blood pressure" < lines.txt
"""

import sys

from osrerank import connect

TEXTS = [
    "Blood is red because of iron.",
    "Dehydration, bed rest and some drugs lower blood pressure.",
    "High blood pressure has no symptoms for years.",
]


def main(query: str = "what causes low blood pressure") -> None:
    """Print the texts, the most relevant first, each with the model's probability."""
    texts = [line.strip() for line in sys.stdin if line.strip()] if len(sys.argv) > 1 else TEXTS
    client = connect("embedded:./texts")
    for candidate in client.rerank(query, texts, options={"blend": "replace"}).candidates:  # there is no first pass
        print(f"{candidate.trace[-1].parts['probability']:.3f}  {candidate.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
