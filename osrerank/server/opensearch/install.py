"""OpenSearch's own ``rerank`` search pipeline with a rerank server: install and remove it completely.

Each installation creates its own model, checks it, and then makes the search pipeline call it. No other installation
uses that model, so a model that the pipeline no longer calls can be deleted. If several installations run at the same
time, the last one to store the pipeline wins; the others remove their models.
"""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import ConfigError, InstallError
from osrerank.retrieval.search_pipelines import OSRERANK_DESCRIPTION
from osrerank.server.explained import explained
from osrerank.server.fields import fields_missing
from osrerank.server.opensearch.cluster import check_plugins, needed_settings
from osrerank.server.opensearch.ml_commons import CallBounds, Model, Models
from osrerank.server.opensearch.templates import Templates, source_of

DEFAULT_PIPELINE = "index.search.default_pipeline"
MARK = f"{OSRERANK_DESCRIPTION} Made, and to be removed, by osrerank pipeline. With: "
DRIFTED = "is not as this osrerank installs it: run osrerank pipeline install again"


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """The search pipeline to install.

    Attributes:
        server: the address of the rerank server as the cluster reaches it, ``http(s)://host:port``.
        fields: the fields whose texts the model reads, joined without a separator.
        oversample: the number of reranked hits, as a multiple of the page's size.
        token: the server's bearer token; None if the server needs none.
        bounds: the bounds of the cluster's calls to the server.
        template: the name of a search template that uses the pipeline; None for no template.
        index: the index whose mapping has the fields; empty if no index was given.
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
        model_id: the id of its model; "none" if someone removed the model from the pipeline.
        fields: the fields whose texts are sent.
        oversample: the number of reranked hits, as a multiple of the page's size.
        templates: the names of its search templates.
        index: the index whose mapping has the fields; empty if no index was given.
        drifted: the names of the search pipeline and the templates that are missing, changed, or of an older osrerank.
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
        """Return the source that each of its search templates has."""
        return source_of(self.fields, self.processors())


class Installer:
    """Installs, inspects and removes a search pipeline. If reranking fails, a search has the first pass's order.

    Args:
        client: a client of the cluster; its user may change search pipelines and models.
        name: the name of the pipeline, a part of URLs: a letter or digit, then letters, digits, ``.``, ``_`` and ``-``.

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

    def plan(self, spec: PipelineSpec) -> list[str]:
        """Return a sentence for each change that `install` would make; an empty list if everything is installed.

        Raises:
            InstallError: the cluster cannot rerank, or someone else's pipeline or template has a needed name.
        """
        check_plugins(self._client)
        if spec.template is not None:
            self._templates.check(spec.template)
        installation = self.find()
        if installation is not None and self._is_installed(installation, spec):
            unused_ids = [model_id for model_id in self._models.ids() if model_id != installation.model_id]
            return [f"removal of model {model_id}, which another installation left" for model_id in unused_ids]
        window = "the page" if spec.oversample == 1 else f"{spec.oversample:g} times the page"
        steps = [f"model {self._models.label}, calling {spec.server}"]
        steps.append(f"search pipeline {self._name}: reranks {window} by {', '.join(spec.fields)}")
        return [*steps, *(f"search template {name}" for name in _target(spec, installation, "").templates)]

    def needed_settings(self, spec: PipelineSpec) -> dict[str, dict[str, Any]]:
        """Return the body of the ``PUT _cluster/settings`` that must be sent first; empty if the settings suffice.

        Raises:
            InstallError: the settings cannot be read.
        """
        return needed_settings(self._client, spec.server)

    def search(self, spec: PipelineSpec) -> str:
        """Return a search that the pipeline reranks, to be pasted into Dev Tools."""
        query = "what lowers blood pressure"
        context = {"query_context": {"query_text": query}}
        body = {"query": {"match": {spec.fields[0]: query}}, "ext": {"rerank": context}}
        return f"POST {spec.index or '_all'}/_search?search_pipeline={self._name}\n{json.dumps(body, indent=2)}"

    def install(self, spec: PipelineSpec) -> None:
        """Install what is missing, and score a pair through it; leave nothing new if that fails.

        Raises:
            InstallError: OpenSearch refused a step, the cluster cannot reach the server, or someone removed or changed
                the pipeline at the same time.
        """
        if not self.plan(spec):
            return
        model_id = self._models.create(spec.server, spec.token, spec.bounds)
        target = None
        try:
            self._models.check(model_id)
            target = _target(spec, self.find(), model_id)
            for name in {*target.templates} - {*self._templates.all()}:
                self._templates.put(name, target.template())
            replaceable_ids = {model_id, self._model_id()}
            self._store(target)
        except BaseException:
            with contextlib.suppress(InstallError):  # the first failure is the one to report
                self._undo(model_id, target)
            raise
        while (installation := self._clean_up(replaceable_ids)) is not None:
            is_installed = self._is_installed(installation, spec)
            if installation == self.find():  # it did not change meanwhile
                break
        if installation is None or not is_installed:
            reason = f"the search pipeline {self._name} was removed, or installed otherwise, at the same time"
            raise InstallError(f"{reason}: run osrerank pipeline status, then install again")
        self._models.remove_left({*self._models.ids()} - replaceable_ids, self._model_id)
        self._clean_up(replaceable_ids)  # another installation may have stored its model only now

    def _store(self, target: Installation) -> None:
        """Create or overwrite the search pipeline."""
        body = {"description": MARK + json.dumps({"index": target.index}), **target.processors()}
        with explained("put the search pipeline"):
            self._client.transport.perform_request("PUT", f"/_search/pipeline/{self._name}", body=body)

    def _undo(self, model_id: str, target: Installation | None) -> None:
        """Remove what a failed installation created, unless the pipeline already calls its model."""
        installation = self.find()
        if installation is not None and installation.model_id == model_id:
            return
        for name, source in self._templates.all().items():
            if target is not None and source == target.template():
                self._templates.remove(name)
        self._models.remove({model_id})

    def _clean_up(self, replaceable_ids: Collection[str | None]) -> Installation | None:
        """Update drifted templates, remove the models that the pipeline does not call, and return the installation.

        None is returned if the pipeline no longer exists.
        """
        while (installation := self.find()) is not None:
            names = {*installation.drifted} & {*installation.templates}
            if not names:
                break
            for name in names:
                self._templates.put(name, installation.template())
        self._models.remove(replaceable_ids, keep=None if installation is None else installation.model_id)
        return installation

    def _model_id(self) -> str | None:
        """Return the id of the model that the pipeline calls; None without a pipeline."""
        return _model_of(self._pipeline() or {})

    def _pipeline(self) -> dict[str, Any] | None:
        """Return the definition of the search pipeline; None if it does not exist."""
        with explained("read the search pipeline"):
            try:
                content = self._client.transport.perform_request("GET", f"/_search/pipeline/{self._name}")
            except NotFoundError:
                return None
        pipeline: dict[str, Any] = content[self._name]
        return pipeline

    def find(self) -> Installation | None:
        """Return the installation; None if no search pipeline has the name.

        Raises:
            InstallError: osrerank did not create the search pipeline.
        """
        pipeline = self._pipeline()
        if pipeline is None:
            return None
        description = pipeline.get("description", "")
        if not description.startswith(MARK):
            raise InstallError(f"the search pipeline {self._name} is not osrerank's: choose another --name")
        rerank = _processor(pipeline, "response_processors", "rerank")
        installation = Installation(
            _model_of(pipeline) or "none",
            tuple(rerank.get("context", {}).get("document_fields", ())),
            float(_processor(pipeline, "request_processors", "oversample").get("sample_factor", 1.0)),
            index=json.loads(description.removeprefix(MARK))["index"],
        )
        templates = self._templates.all()
        drifted = [] if _has(pipeline, installation.processors()) else [self._name]
        drifted += [name for name, source in templates.items() if source != installation.template()]
        return replace(installation, templates=tuple(templates), drifted=tuple(drifted))

    def status(self, index: str = "") -> dict[str, Any]:
        """Return the parts of the installation and whether it scores a pair.

        Args:
            index: the index that must have the pipeline's fields. Empty for the installation's index, or else for the
                indices whose default pipeline this is, or else for all indices.
        """
        installation = self.find()
        if installation is None:
            return {"pipeline": self._name, "installed": False}
        model = self._models.find(installation.model_id)
        default_for = self._default_for()
        index = index or installation.index or ",".join(default_for)
        return {
            "pipeline": self._name,
            "installed": True,
            "server": None if model is None else model.server,
            "model_id": installation.model_id,
            "model_state": None if model is None else model.state,
            "fields": list(installation.fields),
            "oversample": installation.oversample,
            "missing_fields": fields_missing(self._client, index, installation.fields),
            "default_for": default_for,
            "templates": list(installation.templates),
            "drifted": [f"{name} {DRIFTED}" for name in installation.drifted],
            "failure": self._failure(installation.model_id),
        }

    def remove(self) -> list[str]:
        """Remove the pipeline, its models and templates, and those of interrupted installations.

        A sentence for each removal is returned.

        Raises:
            InstallError: OpenSearch refused a step, or an index has the pipeline as its default.
        """
        removals = []
        if self.find() is not None:
            if indexes := ",".join(self._default_for()):
                request = f'PUT {indexes}/_settings {{"{DEFAULT_PIPELINE}": null}}'
                raise InstallError(f"{self._name} is the default pipeline of {indexes}: send {request} first")
            with explained("remove the search pipeline"), contextlib.suppress(NotFoundError):
                self._client.transport.perform_request("DELETE", f"/_search/pipeline/{self._name}")
            removals = [f"removed search pipeline {self._name}"]
        for name in self._templates.all():
            self._templates.remove(name)
            removals.append(f"removed search template {name}")
        removals += [f"removed {name}" for name in self._models.remove()]
        return removals if self.find() is None else [*removals, *self.remove()]  # an installation was under way

    def _is_installed(self, installation: Installation, spec: PipelineSpec) -> bool:
        """Return whether an installation has the settings of a specification and scores a pair.

        A token cannot be read back; a wrong one shows when the pair is scored.
        """
        model = Model("DEPLOYED", spec.server, spec.token is not None, spec.bounds.client_config())
        model_id = installation.model_id
        if installation != _target(spec, installation, model_id) or self._models.find(model_id) != model:
            return False
        return self._failure(model_id) is None

    def _failure(self, model_id: str) -> str | None:
        """Return why OpenSearch cannot score a pair with the model; None if it can."""
        try:
            self._models.probe(model_id)
        except InstallError as error:
            return str(error)
        return None

    def _default_for(self) -> list[str]:
        """Return the names of the indices that have this pipeline as their default."""
        with explained("look at the indexes' settings"):
            answer = self._client.indices.get_settings(index="_all", flat_settings=True, expand_wildcards="open,closed")
        return [name for name, index in answer.items() if index["settings"].get(DEFAULT_PIPELINE) == self._name]


def _target(spec: PipelineSpec, current: Installation | None, model_id: str) -> Installation:
    """Return the installation that a specification asks for; it keeps the current templates and the current index."""
    current_templates, index = ((), "") if current is None else (current.templates, current.index)
    templates = {*current_templates, *(() if spec.template is None else (spec.template,))}
    return Installation(model_id, spec.fields, spec.oversample, tuple(sorted(templates)), spec.index or index)


def _processor(pipeline: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Return a processor's options; empty if the pipeline has no such processor."""
    options = (processor[name] for processor in pipeline.get(kind, ()) if name in processor)
    return next(options, {})


def _model_of(pipeline: Mapping[str, Any]) -> str | None:
    """Return the id of the model that a pipeline calls; None if it calls none."""
    rerank = _processor(pipeline, "response_processors", "rerank")
    model_id: str | None = rerank.get("ml_opensearch", {}).get("model_id")
    return model_id


def _has(pipeline: Mapping[str, Any], processors: Mapping[str, Any]) -> bool:
    """Return whether a pipeline has exactly these processors."""
    kinds = ("request_processors", "response_processors", "phase_results_processors")
    return all(pipeline.get(kind, []) == processors.get(kind, []) for kind in kinds)
