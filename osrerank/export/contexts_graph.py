"""Build the ONNX graphs of a joined model with one joined layer: attention by documents, then scores.

What the query's rows see in one document does not depend on another one, nor on what they see in the query. The queries
graph is run once a search. The contexts graph has a softmax over a text's rows alone, the query's own or a document's:
its context and the logarithm of its sum. The scores graph has a softmax over such sums, the query's and one document's,
or two of a duo model, which gives the shares of their contexts: the same as one softmax over all rows. So the rest of
the layer is computed for documents of any lengths together, and a document in 49 pairs is looked at once.
"""

from collections.abc import Mapping
from typing import Any

from osrerank.export.graph import PLACES, Shape
from osrerank.export.joined_graph import JoinGraph, JoiningGraph
from osrerank.scoring.card import SEGMENTS


class _OneLayer(JoiningGraph):
    def _rows_that_look(self) -> str:
        joining = self._card.joining
        return self._first("query.0") if "cls" in (joining.rows, joining.pooling) else "query.0"

    def _query_shape(self) -> dict[str, Shape]:
        return {"query.0": (1, "tokens", self._hidden)}

    def _contexts(self, count: str | int) -> Shape:
        return (count, self._heads, "looking", self._width)

    def _log_sums(self, count: str | int) -> Shape:
        return (count, self._heads, "looking", 1)


class QueriesGraph(_OneLayer):
    """The attention queries of a query's rows.

    Its input is ``query.0`` of `JoinGraph`. Its outputs are float32: ``queries`` ``(hidden, heads * looking)``, of
    those of the query's rows that look at the document, times the key matrix, and ``offsets`` ``(heads, looking, 1)``,
    times the key bias.
    """

    def build(self) -> Any:
        add = self.graph.add
        _, keyed, offsets = self._asked(self._rows_that_look(), self._layers - 1)
        queries = add("Transpose", [add("Squeeze", [keyed, self._axis(0)])], perm=[1, 0])
        outputs: dict[str, tuple[str, Shape]] = {
            "queries": (queries, (self._hidden, "looks")),
            "offsets": (add("Squeeze", [offsets, self._axis(0)]), (self._heads, "looking", 1)),
        }
        return self.graph.model(self._query_shape(), outputs)


class ContextsGraph(_OneLayer):
    """What a query's rows see in texts, each by itself.

    Its inputs are float32: ``queries`` and ``offsets`` of `QueriesGraph`, ``rows`` ``(n, rows, hidden)``, ``scale`` and
    ``bias`` ``(n, rows)`` as `JoinGraph` has them of a document. Its outputs are float32: ``context`` ``(n, heads,
    looking, width)``, the mean of a text's values in each head by the attention of each of the query's rows that look,
    and ``log_sum`` ``(n, heads, looking, 1)``, the logarithm of the sum of exponentials of the logits. The softmax is
    written out for its sake.
    """

    def build(self) -> Any:
        add, layer = self.graph.add, self._layers - 1
        scale = add("Unsqueeze", ["scale", self._axis(2)])
        products = add("Mul", [add("MatMul", ["rows", "queries"]), scale])
        logits = self._heads_of_rows(add("Transpose", [products], perm=[0, 2, 1]))
        bias = add("Unsqueeze", ["bias", self._axes(1, 2)])
        logits = add("Add", [logits, add("Add", ["offsets", bias])])
        largest = add("ReduceMax", [logits, self._axis(3)])
        exponentials = add("Exp", [add("Sub", [logits, largest])])
        total = add("ReduceSum", [exponentials, self._axis(3)])
        shares = add("Mul", [add("Div", [exponentials, total]), add("Unsqueeze", ["scale", self._axes(1, 2)])])
        seen = self._valued(self._summed(shares, "rows"), layer)
        shapes: dict[str, Shape] = {
            "queries": (self._hidden, "looks"),
            "offsets": (self._heads, "looking", 1),
            "rows": ("n", "rows", self._hidden),
            "scale": ("n", "rows"),
            "bias": ("n", "rows"),
        }
        outputs: dict[str, tuple[str, Shape]] = {
            "context": (add("Add", [seen, self._value_bias(layer)]), self._contexts("n")),
            "log_sum": (add("Add", [largest, add("Log", [total])]), self._log_sums("n")),
        }
        return self.graph.model(shapes, outputs)


class ScoresGraph(_OneLayer):
    """Scores of documents by what a query's rows see in them.

    Its inputs are ``query.0`` and ``query_vector``, as `JoinGraph` has them, the outputs of `ContextsGraph` for
    documents, and, as ``own_context`` and ``own_log_sum``, for the query's own rows; ``document_vector``
    ``(n, hidden)``, and ``places``, int64 ``(p, 1)``, or ``(p, 2)`` of a duo model: places of the documents that are
    looked at together. Its output is ``logits`` ``(p, 1)``: the cosine with the document's vector, of a duo model that
    with the first one's less that with the second's.
    """

    def build(self) -> Any:
        add, documents = self.graph.add, SEGMENTS[self._card.kind] - 1
        sums = [self._of("log_sum", place) for place in range(documents)]
        own = add("Expand", ["own_log_sum", add("Shape", [sums[0]])])
        attention = add("Softmax", [add("Concat", [own, *sums], axis=3)], axis=3)
        shares = self.graph.split("Split", [attention], documents + 1, axis=3, num_outputs=documents + 1)
        seen = ["own_context", *(self._of("context", place) for place in range(documents))]
        context = add("Sum", [add("Mul", [one, share]) for one, share in zip(seen, shares, strict=True)])
        states = self._after(self._beside(context), self._rows_that_look(), self._layers - 1)
        vectors = [self._of("document_vector", place) for place in range(documents)]
        vector = add("Sub", vectors) if documents == 2 else vectors[0]
        shapes: dict[str, Shape] = {
            **self._query_shape(),
            "query_vector": (1, self._hidden),
            "own_context": self._contexts(1),
            "own_log_sum": self._log_sums(1),
            "context": self._contexts("n"),
            "log_sum": self._log_sums("n"),
            "document_vector": ("n", self._hidden),
            PLACES: ("p", documents),
        }
        return self.graph.model(shapes, {"logits": (self._score(states, vector), ("p", 1))})

    def _of(self, name: str, place: int) -> str:
        """Return what belongs to each score's first or second document."""
        documents = self.graph.add("Gather", [PLACES, self._axis(place)], axis=1)
        return self.graph.add("Gather", [name, self._squeezed(documents)])


GRAPHS: Mapping[str, type[JoiningGraph]] = {
    "join": JoinGraph,
    "queries": QueriesGraph,
    "contexts": ContextsGraph,
    "scores": ScoresGraph,
}
"""By what follows the precision in `osrerank.scoring.card.join_keys`."""
