"""Candidates of two queries as the rows of a DataFrame with PyTerrier's columns; pandas itself is optional."""

TEXTS = {"a": "lakes freeze in winter", "b": "rivers run", "c": "ships sail on frozen lakes", "d": " "}
ROWS = [
    {"qid": qid, "query": query, "docno": docno, "text": text, "score": 9.0 - place, "rank": place, "site": docno * 2}
    for qid, query in (("1", "frozen lakes"), ("2", "rivers run"))
    for place, (docno, text) in enumerate(TEXTS.items())
]
