"""OpenSearch's own ``rerank`` search pipeline with a rerank server: install and remove it completely.

An installation makes a model of its own, checks it, and then lets the search pipeline point to it. Nobody else points
the pipeline to that model, so a model that the pipeline has left can be deleted. Of installations at the same time, the
last one that puts the pipeline wins; the others remove their models.
"""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import ConfigError, InstallError
from osrerank.retrieval.search_pipelines import OWN_DESCRIPTION
from osrerank.server.explained import explained
from osrerank.server.fields import fields_missing
from osrerank.server.opensearch.cluster import check_plugins, needed_settings
from osrerank.server.opensearch.ml_commons import CallBounds, Model, Models
from osrerank.server.opensearch.templates import Templates, source_of

DEFAULT_PIPELINE = "index.search.default_pipeline"
MARK = f"{OWN_DESCRIPTION} Made, and to be removed, by osrerank pipeline. With: "
DRIFTED = "is not as this osrerank installs it: run osrerank pipeline install again"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to install.

    Attributes:
        server: the rerank server as the cluster reaches it, ``http(s)://host:port``.
        fields: fields whose texts the model reads, joined without a separator.
        oversample: how many times the page's size is fetched and reranked.
        token: the server's bearer token.
        bounds: the bounds of the cluster's calls to the server.
        template: a search template that goes through the pipeline.
        index: where the fields were looked up.
    """

    server: str
    fields: tuple[str, ...]
    oversample: float = 1.0
    token: str | None = field(default=None, repr=False)
    bounds: CallBounds = field(default_factory=CallBounds)
    template: str | None = None
    index: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed pipeline.

    Attributes:
        model_id: the id of its model; "none" where somebody took it out of the pipeline.
        fields: fields whose texts are sent.
        oversample: how many times the page's size is reranked.
        templates: its search templates.
        index: where the fields were looked up; empty where they were not.
        drifted: its search pipeline and templates that are missing, changed, or of an older osrerank.
    """

    model_id: str
    fields: tuple[str, ...]
    oversample: float
    templates: tuple[str, ...] = ()
    index: str = ""
    drifted: tuple[str, ...] = ()

    def processors(self) -> dict[str, Any]:
        """Return the processors of the search pipeline."""
        context = {"document_fields": list(self.fields)}
        model = {"model_id": self.model_id}
        rerank: dict[str, Any] = {"ml_opensearch": model, "context": context, "ignore_failure": True}
        if self.oversample == 1:
            return {"response_processors": [{"rerank": rerank}]}
        return {
            "request_processors": [{"oversample": {"sample_factor": self.oversample}}],
            "response_processors": [{"rerank": rerank}, {"truncate_hits": {}}],
        }

    def template(self) -> str:
        """Return the source of its search templates."""
        return source_of(self.fields, self.processors())


class Installer:
    """Installs, inspects and removes a pipeline, which returns the first pass's order when reranking fails.

    Args:
        client: the cluster's, with the rights to change search pipelines and models.
        name: the pipeline's, part of addresses: a letter or digit, then letters, digits, ``.``, ``_`` and ``-``.

    Raises:
        ConfigError: the name has other characters.
    """

    kind = "search pipeline"

    def __init__(self, client: OpenSearch, name: str) -> None:
        if not re.fullmatch(r"[^\W_][\w.-]*", name, re.ASCII):
            reason = (
                f"the search pipeline's name is {name!r}; it may have letters and digits, then '.', '_' and '-' too"
            )
            raise ConfigError(reason, setting="name", source="flag")
        self._client = client
        self._name = name
        self._models = Models(client, name)
        self._templates = Templates(client, name)

    def plan(self, wish: Wish) -> list[str]:
        """Return what installing would make, a sentence each, without making anything; nothing if all is there.

        Raises:
            InstallError: the cluster cannot rerank, or something that is not ours has a name that is needed.
        """
        check_plugins(self._client)
        if wish.template is not None:
            self._templates.check(wish.template)
        found = self.find()
        if found is not None and self._fulfils(found, wish):
            left = [one for one in self._models.ids() if one != found.model_id]
            return [f"removal of model {one}, which another installation left" for one in left]
        window = "the page" if wish.oversample == 1 else f"{wish.oversample:g} times the page"
        steps = [f"model {self._models.label}, calling {wish.server}"]
        steps.append(f"search pipeline {self._name}: reranks {window} by {', '.join(wish.fields)}")
        return [*steps, *(f"search template {name}" for name in _wanted(wish, found, "").templates)]

    def needed_settings(self, wish: Wish) -> dict[str, dict[str, Any]]:
        """Return the body of the ``PUT _cluster/settings`` that must be sent first; empty if none must.

        Raises:
            InstallError: the settings cannot be read.
        """
        return needed_settings(self._client, wish.server)

    def search(self, wish: Wish) -> str:
        """Return a search that the pipeline reranks, to be pasted into Dev Tools."""
        query = "what lowers blood pressure"
        context = {"query_context": {"query_text": query}}
        body = {"query": {"match": {wish.fields[0]: query}}, "ext": {"rerank": context}}
        return f"POST {wish.index or '_all'}/_search?search_pipeline={self._name}\n{json.dumps(body, indent=2)}"

    def install(self, wish: Wish) -> None:
        """Install everything that is not there yet, and score a pair through it; leave nothing new if that fails.

        Raises:
            InstallError: a step was refused, the cluster cannot reach the server, or the pipeline was removed, or
                installed otherwise, at the same time.
        """
        if not self.plan(wish):
            return
        model_id = self._models.create(wish.server, wish.token, wish.bounds)
        wanted = None
        try:
            self._models.check(model_id)
            wanted = _wanted(wish, self.find(), model_id)
            for name in {*wanted.templates} - {*self._templates.all()}:
                self._templates.put(name, wanted.template())
            spent = {model_id, self._model_id()}
            self._put(wanted)
        except BaseException:
            with contextlib.suppress(InstallError):  # the first failure is the one to report
                self._undo(model_id, wanted)
            raise
        while (found := self._settled(spent)) is not None:
            is_fulfilled = self._fulfils(found, wish)
            if found == self.find():  # it did not change meanwhile
                break
        if found is None or not is_fulfilled:
            reason = f"the search pipeline {self._name} was removed, or installed otherwise, at the same time"
            raise InstallError(f"{reason}: look at osrerank pipeline status, then install again")
        self._models.remove_left({*self._models.ids()} - spent, self._model_id)
        self._settled(spent)  # another installation may have put its model only now

    def _put(self, wanted: Installation) -> None:
        body = {"description": MARK + json.dumps({"index": wanted.index}), **wanted.processors()}
        with explained("put the search pipeline"):
            self._client.transport.perform_request("PUT", f"/_search/pipeline/{self._name}", body=body)

    def _undo(self, model_id: str, wanted: Installation | None) -> None:
        """Remove what an installation made that failed before the pipeline pointed to its model."""
        found = self.find()
        if found is not None and found.model_id == model_id:
            return
        for name, source in self._templates.all().items():
            if wanted is not None and source == wanted.template():
                self._templates.remove(name)
        self._models.remove({model_id})

    def _settled(self, spent: Collection[str | None]) -> Installation | None:
        """Let the templates follow the pipeline, remove models that it has left, and return it, None if it is gone."""
        while (found := self.find()) is not None and (late := {*found.drifted} & {*found.templates}):
            for name in late:
                self._templates.put(name, found.template())
        self._models.remove(spent, keep=None if found is None else found.model_id)
        return found

    def _model_id(self) -> str | None:
        """Return the model that the pipeline points to; None without a pipeline."""
        return _model_of(self._pipeline() or {})

    def _pipeline(self) -> dict[str, Any] | None:
        """Return the search pipeline; None when there is none."""
        with explained("look at the search pipeline"):
            try:
                content = self._client.transport.perform_request("GET", f"/_search/pipeline/{self._name}")
            except NotFoundError:
                return None
        found: dict[str, Any] = content[self._name]
        return found

    def find(self) -> Installation | None:
        """Return the pipeline, None when there is none.

        Raises:
            InstallError: the pipeline is not ours.
        """
        pipeline = self._pipeline()
        if pipeline is None:
            return None
        description = pipeline.get("description", "")
        if not description.startswith(MARK):
            raise InstallError(f"the search pipeline {self._name} is not osrerank's: choose another --name")
        rerank = _processor(pipeline, "response_processors", "rerank")
        found = Installation(
            _model_of(pipeline) or "none",
            tuple(rerank.get("context", {}).get("document_fields", ())),
            float(_processor(pipeline, "request_processors", "oversample").get("sample_factor", 1.0)),
            index=json.loads(description.removeprefix(MARK))["index"],
        )
        templates = self._templates.all()
        drifted = [] if _has(pipeline, found.processors()) else [self._name]
        drifted += [name for name, source in templates.items() if source != found.template()]
        return replace(found, templates=tuple(templates), drifted=tuple(drifted))

    def status(self, index: str = "") -> dict[str, Any]:
        """Return what is installed and whether it works.

        Args:
            index: which must have the pipeline's fields; empty for the one of the installation, those whose default
                the pipeline is, or any.
        """
        found = self.find()
        if found is None:
            return {"pipeline": self._name, "installed": False}
        model = self._models.find(found.model_id)
        default_for = self._default_for()
        index = index or found.index or ",".join(default_for)
        return {
            "pipeline": self._name,
            "installed": True,
            "server": None if model is None else model.server,
            "model_id": found.model_id,
            "model_state": None if model is None else model.state,
            "fields": list(found.fields),
            "oversample": found.oversample,
            "missing_fields": fields_missing(self._client, index, found.fields),
            "default_for": default_for,
            "templates": list(found.templates),
            "drifted": [f"{name} {DRIFTED}" for name in found.drifted],
            "failure": self._failure(found.model_id),
        }

    def remove(self) -> list[str]:
        """Remove everything, also what an interrupted installation left, and return what was removed.

        Raises:
            InstallError: a step was refused, or an index has the pipeline as its default.
        """
        done = []
        if self.find() is not None:
            if indexes := ",".join(self._default_for()):
                request = f'PUT {indexes}/_settings {{"{DEFAULT_PIPELINE}": null}}'
                raise InstallError(f"{self._name} is the default pipeline of {indexes}: send {request} first")
            with explained("remove the search pipeline"), contextlib.suppress(NotFoundError):
                self._client.transport.perform_request("DELETE", f"/_search/pipeline/{self._name}")
            done = [f"removed search pipeline {self._name}"]
        for name in self._templates.all():
            self._templates.remove(name)
            done.append(f"removed search template {name}")
        done += [f"removed {one}" for one in self._models.remove()]
        return done if self.find() is None else [*done, *self.remove()]  # an installation was under way

    def _fulfils(self, found: Installation, wish: Wish) -> bool:
        """Return whether an installation is as wished for; a token cannot be read back, so a pair is scored."""
        model = Model("DEPLOYED", wish.server, wish.token is not None, wish.bounds.client_config())
        if found != _wanted(wish, found, found.model_id) or self._models.find(found.model_id) != model:
            return False
        return self._failure(found.model_id) is None

    def _failure(self, model_id: str) -> str | None:
        """Return why a pair cannot be scored through OpenSearch; None when it can."""
        try:
            self._models.probe(model_id)
        except InstallError as error:
            return str(error)
        return None

    def _default_for(self) -> list[str]:
        """Return the indexes that have this pipeline as their default."""
        with explained("look at the indexes' settings"):
            found = self._client.indices.get_settings(index="_all", flat_settings=True, expand_wildcards="open,closed")
        return [name for name, one in found.items() if one["settings"].get(DEFAULT_PIPELINE) == self._name]


def _wanted(wish: Wish, found: Installation | None, model_id: str) -> Installation:
    """Return the installation that fulfils a wish; it keeps the templates and the index of the one there is."""
    kept, index = ((), "") if found is None else (found.templates, found.index)
    templates = {*kept, *(() if wish.template is None else (wish.template,))}
    return Installation(model_id, wish.fields, wish.oversample, tuple(sorted(templates)), wish.index or index)


def _processor(pipeline: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Return a processor's options, none if the pipeline has no such processor."""
    found: dict[str, Any] = next((one[name] for one in pipeline.get(kind, ()) if name in one), {})
    return found


def _model_of(pipeline: Mapping[str, Any]) -> str | None:
    """Return the id of the model that a pipeline calls; None if it calls none."""
    found: str | None = _processor(pipeline, "response_processors", "rerank").get("ml_opensearch", {}).get("model_id")
    return found


def _has(pipeline: Mapping[str, Any], processors: Mapping[str, Any]) -> bool:
    """Return whether a pipeline has these processors and no others."""
    kinds = ("request_processors", "response_processors", "phase_results_processors")
    return all(pipeline.get(kind, []) == processors.get(kind, []) for kind in kinds)
