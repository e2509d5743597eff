"""Search an index of your own, and see what reranking changes.

python docs/examples/search_my_index.py                                             # a small index, made here
python docs/examples/search_my_index.py https://localhost:9200 articles "how to prune roses"

The text fields of the index are found by its mapping.
"""

import sys

from osrerank import Client, connect

ARTICLES = [
    {"headline": "Roses, roses", "body": "How roses got their name: a book about roses, and how to prune a story."},
    {
        "headline": "Late winter in the garden",
        "body": "Cut each rose cane back, just above a bud that faces outwards.",
    },
    {"headline": "Garden calendar", "body": "Roses bloom in June. Water them in the morning."},
]


def main(url: str = "", index: str = "articles", query: str = "how to prune roses") -> None:
    """Print both orders, and what happened."""
    client = connect(url, warm=True) if url else small_index(index)
    for rerank in (False, True):
        response = client.search(query, index=index, size=3, rerank=rerank)
        print("reranked" if rerank else "first pass")
        for hit in response["hits"]["hits"]:
            print(f"  {hit['_score']:6.3f}  {hit['_id']}  {next(iter(hit['_source'].values()))}")
    print(response["rerank"])


def small_index(index: str) -> Client:
    """Return a client of an engine in this process, with some articles."""
    client = connect("embedded:./articles", warm=True)
    lines = [line for number, article in enumerate(ARTICLES) for line in ({"index": {"_id": number}}, article)]
    client.bulk(index=index, body=lines, refresh=True)
    return client


if __name__ == "__main__":
    main(*sys.argv[1:])
