"""Find the special tokens, such as [CLS] and [SEP], that a tokenizer puts around a text or a pair of texts."""

from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing


@dataclass(frozen=True, slots=True)
class Template:
    """The special tokens of a sequence ``head query middle document tail``, and the segment ids of its parts.

    For BERT's ``[CLS] q [SEP] d [SEP]``, ``head`` is [CLS], and ``middle`` and ``tail`` are [SEP].

    Attributes:
        head: token ids before the query.
        middle: token ids between query and document, and between two documents.
        tail: token ids at the end.
        query_middle_tokens: number of tokens in ``middle`` that have the query's segment id, which is 0. BERT has one.
        document_segment: segment id of the document: 1 for BERT, 0 for models without segments.
        second_document_segment: segment id of a duo model's second document. Other models do not use it.
    """

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    query_middle_tokens: int
    document_segment: int
    second_document_segment: int = 0

    def count_tokens(self, n_documents: int = 1) -> int:
        """Return the number of special tokens in a sequence with this many documents: for BERT, 3 with one document."""
        return len(self.head) + n_documents * len(self.middle) + len(self.tail)


def single_template(tokenizer: Tokenizer) -> Template:
    """Return the special tokens that a tokenizer puts around one text: ``head text tail``.

    Raises:
        ValueError: the tokenizer adds no special tokens.
    """
    encoding = tokenizer.encode("a")
    text_positions = [index for index, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    has_special_tokens = len(text_positions) < len(encoding.ids)
    # a StaticEmbedding has a template without special tokens
    may_have_none = isinstance(tokenizer.post_processor, TemplateProcessing)
    if not text_positions or not (has_special_tokens or may_have_none):
        raise ValueError(
            "it has no post-processor that puts special tokens around a text; save it again with transformers"
        )
    head = tuple(encoding.ids[: text_positions[0]])
    tail = tuple(encoding.ids[text_positions[-1] + 1 :])
    return Template(head, (*tail, *head), tail, query_middle_tokens=len(tail), document_segment=1)


def pair_template(tokenizer: Tokenizer) -> Template:
    """Return the special tokens that a tokenizer puts around a pair of texts: ``head query middle document tail``.

    Raises:
        ValueError: the tokenizer adds no special tokens.
    """
    encoding = tokenizer.encode("a", "b")
    query_positions = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence == 0]
    document_positions = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    n_special = len(encoding.ids) - len(query_positions) - len(document_positions)
    if not query_positions or not document_positions or n_special < 3:  # one each before, between and after the texts
        raise ValueError(
            "it has no post-processor that puts special tokens around a pair; save it again with transformers"
        )
    middle = slice(query_positions[-1] + 1, document_positions[0])
    return Template(
        head=tuple(encoding.ids[: query_positions[0]]),
        middle=tuple(encoding.ids[middle]),
        tail=tuple(encoding.ids[document_positions[-1] + 1 :]),
        query_middle_tokens=sum(segment == 0 for segment in encoding.type_ids[middle]),
        document_segment=encoding.type_ids[document_positions[0]],
    )
