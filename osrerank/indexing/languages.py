"""Detect the languages of an index's documents, and recommend a model and an analyzer for them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from osrerank.client import Client
from osrerank.retrieval.mapping import read_leaves_by_index
from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import locate_offline
from osrerank.scoring.names import MULTILINGUAL_LANGUAGES
from osrerank.scoring.registry import is_local
from osrerank.stages.language_guard import count_languages, describe_multilingual_fix, supports_language

MIN_SHARE = 0.2
"""The minimum fraction of texts in a language. Rarer languages are ignored, because they might be detection errors."""
ANALYZERS = {
    "ar": "arabic", "bg": "bulgarian", "bn": "bengali", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german",
    "el": "greek", "en": "english", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "gl": "galician", "hi": "hindi", "hu": "hungarian", "hy": "armenian",
    "id": "indonesian", "it": "italian", "ja": "cjk", "ko": "cjk", "lt": "lithuanian", "lv": "latvian", "nl": "dutch",
    "no": "norwegian", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sv": "swedish", "th": "thai",
    "tr": "turkish", "zh": "cjk",
}  # fmt: skip
"""OpenSearch's analyzer for each language, by ISO 639-1 code."""
GENERIC_ANALYZERS = ("", "standard", "simple", "whitespace")
"""Analyzers that have no rules for a language, such as stemming. "" stands for the default analyzer."""


@dataclass(frozen=True, slots=True)
class Languages:
    """The languages of an index's documents.

    Attributes:
        counts: the number of sampled documents in each language, such as ``{"de": 17}``, the most common language
            first. Languages below `MIN_SHARE` are left out.
        model: the index's model.
        model_languages: the languages that the model supports. Empty if they are unknown.
        generic_field: the first searched field, if its analyzer is in `GENERIC_ANALYZERS`. Otherwise empty.
    """

    counts: Mapping[str, int]
    model: str
    model_languages: tuple[str, ...]
    generic_field: str

    @classmethod
    def detect(cls, client: Client, index: str, texts: Sequence[str]) -> Self:
        """Detect the languages of an index's documents in a sample of their texts."""
        counts: Counter[str] = count_languages(texts)
        common = {name: count for name, count in counts.most_common() if count >= MIN_SHARE * counts.total()}
        with client.searcher.service_for(index) as service:
            settings = service.settings
        directory = locate_offline(settings.model) if is_local(settings.backend) else None
        model_languages = read_card(directory).languages if directory else ()
        first_field = next(iter(client.fields_of(index).query_fields), "")
        mappings = client.indices.get_mapping(index=index)
        is_generic = any(
            field.path == first_field and field.analyzer in GENERIC_ANALYZERS
            for fields in read_leaves_by_index(mappings).values()
            for field in fields.values()
        )
        return cls(
            counts=common,
            model=settings.model,
            model_languages=model_languages,
            generic_field=first_field if is_generic else "",
        )

    @property
    def unsupported(self) -> tuple[str, ...]:
        """The languages of the documents that the index's model does not support."""
        supported = self.model_languages
        return tuple(name for name in self.counts if supported and not supports_language(name, supported))

    @property
    def needs_multilingual(self) -> bool:
        """Whether the multilingual model supports a language that the index's model does not support."""
        return any(supports_language(name, MULTILINGUAL_LANGUAGES) for name in self.unsupported)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The advice as sentences: the documents' languages, and a model and an analyzer that suit them."""
        if not self.counts:
            return ()
        sentences = [f"the documents are in {', '.join(self.counts)}"]
        if self.unsupported:
            fix = describe_multilingual_fix() if self.needs_multilingual else "name a model that reads it"
            sentences.append(f"{self.model} does not read {', '.join(self.unsupported)}: {fix}")
        main_language = next(iter(self.counts))
        analyzer = ANALYZERS.get(main_language)
        if self.generic_field and analyzer:
            fix = f'"analyzer": "{analyzer}" in the mapping of a new index finds other forms of a word, too'
            sentences.append(f"{self.generic_field} has an analyzer without a language: {fix}")
        return tuple(sentences)
