"""Several searches in one request, each reranked; without input and output."""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank
from osrerank.retrieval.fields import Fields
from osrerank.retrieval.found_fields import FoundFields
from osrerank.retrieval.requests import SideRequest
from osrerank.search.calibrated import Calibrations
from osrerank.search.call import RerankArgument, SearchCall
from osrerank.search.step import Scoring, Step
from osrerank.search.steps import with_fields
from osrerank.search.ubi import UbiRecords
from osrerank.search.vectors import SideVectors
from osrerank.service import RerankService
from osrerank.thresholds.cut import Thresholds
from osrerank.tracing.spans import span


@dataclass(frozen=True, slots=True)
class MultiSearchCall:
    """A planned multi-search: ``plan`` makes it, ``finish`` reranks its responses.

    Attributes:
        lines: headers and bodies, in turn.
    """

    lines: tuple[Mapping[str, Any], ...]
    _calls: tuple[SearchCall, ...]

    @classmethod
    def plan(
        cls,
        reranker: RerankService,
        defaults: Defaults,
        body: Any,
        index: Any,
        *,
        rerank: RerankArgument,
        params: Mapping[str, Any],
        found: FoundFields,
        calibrations: Calibrations,
    ) -> Generator[SideRequest | Scoring, Any, Self]:
        """Yield the requests that find fields which nobody named, and return the call for a multi-search's body.

        A search without a query text is sent unchanged, and its response says so.

        Args:
            reranker: reranks each answer.
            defaults: options of each index.
            body: newline-delimited JSON, or headers and bodies in turn.
            index: of the searches whose header names none.
            rerank: as for a search.
            params: the multi-search's URL parameters.
            found: what is read in indices whose fields nobody named.
            calibrations: what probabilities were fitted to.

        Raises:
            ConfigError: the body has a header without a body, or the rerank options cannot be used.
        """
        parts = _parts(body)
        calls: list[SearchCall] = []
        lines: list[Mapping[str, Any]] = []
        for header, content in zip(parts[::2], parts[1::2], strict=True):
            searched = header.get("index", index)
            options = Rerank.of(rerank, defaults.of(searched)) or Rerank()
            options, fields = yield from with_fields(options, searched, found, query=None, body=content)
            found.warn(searched, fields.complaints(None))
            _refuse_what_takes_more(options)
            thresholds = yield from calibrations.of(options, searched, reranker)
            call = _plan_one(reranker, options, content, params, thresholds, fields)
            calls.append(call)
            lines += [header, call.body]
        return cls(tuple(lines), tuple(calls))

    def finish(
        self, answer: Mapping[str, Any], vectors: SideVectors, records: UbiRecords
    ) -> Generator[Step, Any, dict[str, Any]]:
        """Yield the steps that rerank, and return the responses, each reranked or marked; errors stay unchanged.

        Args:
            answer: OpenSearch's.
            vectors: side indices of document vectors, if there are any.
            records: what users were shown, for UBI.
        """
        if "responses" not in answer:  # filter_path may remove it
            return dict(answer)
        responses = []
        for call, response in zip(self._calls, answer["responses"], strict=True):
            if "error" not in response:
                with span("osrerank.rerank"):
                    reranked = yield from vectors.around(call, response)
                response = yield from records.after(call, reranked)  # noqa: PLW2901 - the same one, marked
            responses.append(response)
        return {**answer, "responses": responses}


def _plan_one(
    reranker: RerankService,
    options: Rerank,
    content: Mapping[str, Any],
    params: Mapping[str, Any],
    thresholds: Thresholds | None,
    fields: Fields,
) -> SearchCall:
    """Return one search's call, with everything in its body because it has no URL."""
    cut = {name: params[name] for name in ("filter_path",) if params.get(name)}
    try:
        call = SearchCall.plan(
            reranker, options, None, content, cut, rerank=options, fields=fields, thresholds=thresholds
        )
    except ConfigError as error:
        if error.setting != "rerank.query":
            raise
        return SearchCall.refused(reranker, options, content, str(error))
    if call.is_changed:
        return replace(call, body={**call.body, **call.params}, params={})
    return call


def _refuse_what_takes_more(options: Rerank) -> None:
    """Refuse options that one request for all searches cannot follow."""
    reasons = {
        "rm3": (options.rm3 is not None, "rm3 asks before it searches"),
    }
    for name, (is_given, why) in reasons.items():
        if is_given:
            message = f"{why}, and a multi-search is one request; use search for these queries"
            raise ConfigError(message, setting=f"rerank.{name}", source="argument")


def _parts(body: Any) -> list[Mapping[str, Any]]:
    if isinstance(body, bytes):
        body = body.decode("utf-8")
    lines = [line for line in body.split("\n") if line.strip()] if isinstance(body, str) else list(body)
    try:
        parts = [json.loads(line) if isinstance(line, str | bytes) else line for line in lines]
    except ValueError as error:
        raise ConfigError(
            f"a line of the multi-search is not JSON: {error}", setting="body", source="argument"
        ) from None
    if len(parts) % 2:
        raise ConfigError(
            f"the multi-search has {len(parts)} lines; each search is a header and a body",
            setting="body",
            source="argument",
        )
    return parts
