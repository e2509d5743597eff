"""The special tokens that a tokenizer puts around one text, or around a pair of texts."""

from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing


@dataclass(frozen=True, slots=True)
class Template:
    """The special tokens that the model's tokenizer puts around query and document: ``head q middle d tail``.

    Attributes:
        head, middle, tail: the ids of the special tokens.
        middle_query: how many tokens of ``middle`` are in the query's segment.
        document_type: segment id of the document: 1 for BERT, 0 for models without segments.
        second_type: segment id of the second document, if two are compared.
    """

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    middle_query: int
    document_type: int
    second_type: int = 0

    def specials(self, documents: int = 1) -> int:
        """Count the special tokens of a sequence with this many documents."""
        return len(self.head) + documents * len(self.middle) + len(self.tail)


def single_template(tokenizer: Tokenizer) -> Template:
    """Return the special tokens that a tokenizer puts around a single text: ``head text tail``.

    Raises:
        ValueError: the tokenizer adds no special tokens.
    """
    encoding = tokenizer.encode("a")
    texts = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
    is_static = isinstance(tokenizer.post_processor, TemplateProcessing)  # a StaticEmbedding's template is empty
    if not texts or (len(texts) == len(encoding.ids) and not is_static):
        raise ValueError("it does not put special tokens around a text (no post-processor)")
    head, tail = tuple(encoding.ids[: texts[0]]), tuple(encoding.ids[texts[-1] + 1 :])
    return Template(head, (*tail, *head), tail, len(tail), 1)


def pair_template(tokenizer: Tokenizer) -> Template:
    """Return the special tokens that a tokenizer puts around a pair of texts.

    Raises:
        ValueError: the tokenizer adds no special tokens.
    """
    encoding = tokenizer.encode("a", "b")
    query = [index for index, text in enumerate(encoding.sequence_ids) if text == 0]
    document = [index for index, text in enumerate(encoding.sequence_ids) if text == 1]
    if not query or not document or len(encoding.ids) - len(query) - len(document) < 3:
        raise ValueError("it does not put special tokens around a pair of texts (no post-processor)")
    head, tail = tuple(encoding.ids[: query[0]]), tuple(encoding.ids[document[-1] + 1 :])
    middle = slice(query[-1] + 1, document[0])
    middle_query = sum(segment == 0 for segment in encoding.type_ids[middle])
    return Template(head, tuple(encoding.ids[middle]), tail, middle_query, encoding.type_ids[document[0]])
