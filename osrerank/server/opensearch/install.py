"""Install, inspect and remove a search pipeline, with which OpenSearch itself reranks by calling osrerank serve.

An installation consists of a model of the ml-commons plugin (`ml_commons`), the search pipeline that calls it, and
optional search templates (`templates`).

Each run of `Installer.install` creates a new model, checks it, and then stores a search pipeline that calls it. If
several runs overlap, the run that stores the pipeline last wins. Runs never share a model. Therefore each run can
delete two models if the pipeline does not call them: its own, if another run has won, and that of the pipeline that it
replaced.
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
from osrerank.server.failures import explain_failures
from osrerank.server.fields import describe_missing_fields
from osrerank.server.opensearch.cluster import check_plugins, find_missing_settings
from osrerank.server.opensearch.ml_commons import CallLimits, Model, Models
from osrerank.server.opensearch.templates import Templates, build_template

DEFAULT_PIPELINE = "index.search.default_pipeline"
"""The index setting that names the search pipeline of searches that do not name one themselves."""
DESCRIPTION_PREFIX = f"{OSRERANK_DESCRIPTION} Made, and to be removed, by osrerank pipeline. With: "
"""The beginning of the description of a search pipeline that osrerank created. JSON follows: ``{"index": "books"}``."""


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """The search pipeline to install.

    Attributes:
        server: the address at which the cluster reaches the rerank server, such as ``http://10.0.0.5:8088``.
        fields: the document fields that the model reads. OpenSearch joins their texts without a separator.
        oversample: the number of reranked hits, as a multiple of the page size: 3 reranks 30 hits for a page of 10.
        token: the server's bearer token, or None if the server needs no token.
        limits: the timeouts, retries and connections of the cluster's calls to the server.
        template: the name of a search template to create, or None to create no template.
        index: the index whose mapping contains the fields, or "" if no index was specified.
    """

    server: str
    fields: tuple[str, ...]
    oversample: float = 1.0
    token: str | None = field(default=None, repr=False)
    limits: CallLimits = field(default_factory=CallLimits)
    template: str | None = None
    index: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """A search pipeline that is installed, or will be, and its search templates.

    The attributes ``fields``, ``oversample`` and ``index`` are those of `PipelineSpec`.

    Attributes:
        model_id: the id of the model that the pipeline calls, or "none" if it calls none because someone changed it.
        templates: the names of the search templates.
        changed_names: the names of the search pipeline and templates whose content is not what this version of osrerank
            installs. Someone changed them, or another version of osrerank wrote them.
    """

    model_id: str
    fields: tuple[str, ...]
    oversample: float
    templates: tuple[str, ...] = ()
    index: str = ""
    changed_names: tuple[str, ...] = ()

    def processors(self) -> dict[str, Any]:
        """Return the search pipeline's processors, as this version of osrerank installs them.

        The processor ``oversample`` requests more hits than the page contains, and after the processor ``rerank``,
        ``truncate_hits`` reduces them to the page size.
        """
        rerank: dict[str, Any] = {
            "ml_opensearch": {"model_id": self.model_id},
            "context": {"document_fields": list(self.fields)},
            "ignore_failure": True,
        }
        if self.oversample == 1:
            return {"response_processors": [{"rerank": rerank}]}
        return {
            "request_processors": [{"oversample": {"sample_factor": self.oversample}}],
            "response_processors": [{"rerank": rerank}, {"truncate_hits": {}}],
        }

    def template_source(self) -> str:
        """Return the source of the search templates, as this version of osrerank installs them."""
        return build_template(self.fields, self.processors())


class Installer:
    """Installs, inspects and removes a search pipeline.

    If reranking fails, a search with the pipeline returns its hits in the original order.

    Args:
        client: a client of the cluster. Its user must be allowed to change search pipelines and models.
        name: the name of the pipeline: a letter or digit, then letters, digits, ``.``, ``_`` and ``-``.

    Raises:
        ConfigError: the name has other characters.
    """

    kind = "search pipeline"
    """What is installed, for messages of ``osrerank pipeline``."""

    def __init__(self, client: OpenSearch, name: str) -> None:
        if not re.fullmatch(r"[^\W_][\w.-]*", name, re.ASCII):
            fix = "use letters, digits, '.', '_' and '-', and begin with a letter or digit"
            raise ConfigError(f"the search pipeline's name {name!r} is not valid: {fix}", setting="name", source="flag")
        self._client = client
        self._name = name
        self._models = Models(client, name)
        self._templates = Templates(client, name)

    def plan(self, spec: PipelineSpec) -> list[str]:
        """Describe each change that `install` would make. The list is empty if everything is installed.

        Raises:
            InstallError: a plugin is missing, or someone else's pipeline or template has the name.
        """
        check_plugins(self._client)
        if spec.template is not None:
            self._templates.check_name(spec.template)
        installation = self.find()
        if installation is not None and self._is_installed(installation, spec):
            unused_ids = [model_id for model_id in self._models.list_ids() if model_id != installation.model_id]
            return [f"removal of model {model_id}, which an interrupted installation left" for model_id in unused_ids]
        reranked_hits = "the page's hits" if spec.oversample == 1 else f"{spec.oversample:g} times the page's hits"
        planned = _plan_installation(spec, installation, model_id="")
        return [
            f"model {self._models.name_prefix}, calling {spec.server}",
            f"search pipeline {self._name}: reranks {reranked_hits} by {', '.join(spec.fields)}",
            *(f"search template {name}" for name in planned.templates),
        ]

    def find_missing_settings(self, spec: PipelineSpec) -> dict[str, dict[str, Any]]:
        """Return the body of ``PUT _cluster/settings`` that must be sent first, or {} if no setting is missing."""
        return find_missing_settings(self._client, spec.server)

    def example_search(self, spec: PipelineSpec) -> str:
        """Return a search that the pipeline reranks, to be pasted into OpenSearch Dashboards' Dev Tools."""
        query = "what lowers blood pressure"
        context = {"query_context": {"query_text": query}}
        body = {"query": {"match": {spec.fields[0]: query}}, "ext": {"rerank": context}}
        return f"POST {spec.index or '_all'}/_search?search_pipeline={self._name}\n{json.dumps(body, indent=2)}"

    def install(self, spec: PipelineSpec) -> None:
        """Create a model, test it by scoring two texts, and then create or overwrite the search pipeline and templates.

        If a step fails, what was created is removed.

        Raises:
            InstallError: OpenSearch refused a request, the cluster cannot reach the server, or someone removed or
                changed the pipeline at the same time.
        """
        if not self.plan(spec):
            return
        model_id = self._models.create(spec.server, spec.token, spec.limits)
        planned = None
        try:
            self._models.wait_until_works(model_id)
            planned = _plan_installation(spec, self.find(), model_id)
            new_templates = set(planned.templates) - set(self._templates.read_sources())
            for name in new_templates:  # `_clean_up` overwrites the others, which still fit the stored pipeline
                self._templates.put(name, planned.template_source())
            replaced_id = self._find_model_id()
            self._store(planned)
        except BaseException:
            with contextlib.suppress(InstallError):  # the first failure is the one to report
                self._undo(model_id, planned)
            raise
        removable_ids = {model_id, replaced_id}  # `_clean_up` keeps the one that the pipeline calls
        if not self._clean_up_and_check(spec, removable_ids):
            reason = f"someone else removed or changed the search pipeline {self._name} at the same time"
            raise InstallError(f"{reason}: run osrerank pipeline status, then install again")
        other_ids = set(self._models.list_ids()) - removable_ids
        self._models.remove_orphans(other_ids, find_used_id=self._find_model_id)
        self._clean_up(removable_ids)  # another run might have replaced this run's model in the pipeline meanwhile

    def _store(self, installation: Installation) -> None:
        """Create or overwrite the search pipeline."""
        description = DESCRIPTION_PREFIX + json.dumps({"index": installation.index})
        body = {"description": description, **installation.processors()}
        with explain_failures("store the search pipeline"):
            self._client.transport.perform_request("PUT", f"/_search/pipeline/{self._name}", body=body)

    def _undo(self, model_id: str, planned: Installation | None) -> None:
        """Remove what a failed installation created, unless the search pipeline already calls the new model."""
        installation = self.find()
        if installation is not None and installation.model_id == model_id:
            return
        if planned is not None:
            for name, source in self._templates.read_sources().items():
                if source == planned.template_source():
                    self._templates.remove(name)
        self._models.remove({model_id})

    def _clean_up_and_check(self, spec: PipelineSpec, removable_ids: Collection[str | None]) -> bool:
        """Clean up, and return whether the installation then matches the specification and can score."""
        while True:
            installation = self._clean_up(removable_ids)
            if installation is None:
                return False
            is_installed = self._is_installed(installation, spec)
            if installation == self.find():  # otherwise, another run changed the installation while it was checked
                return is_installed

    def _clean_up(self, removable_ids: Collection[str | None]) -> Installation | None:
        """Overwrite templates that do not fit the search pipeline, and remove models that it does not call.

        Args:
            removable_ids: the ids of the models to remove. The model that the search pipeline calls is not removed.

        Returns:
            The installation that was found, or None if the search pipeline no longer exists.
        """
        while True:  # until all templates fit, because another run might replace the pipeline meanwhile
            installation = self.find()
            if installation is None:
                break
            changed_templates = set(installation.changed_names) & set(installation.templates)
            if not changed_templates:
                break
            for name in changed_templates:
                self._templates.put(name, installation.template_source())
        used_id = None if installation is None else installation.model_id
        self._models.remove(removable_ids, keep=used_id)
        return installation

    def _find_model_id(self) -> str | None:
        """Return the id of the model that the search pipeline calls now, or None if it calls none or does not exist."""
        return _read_model_id(self._read_pipeline() or {})

    def _read_pipeline(self) -> dict[str, Any] | None:
        """Return the stored search pipeline, or None if no search pipeline has this name."""
        with explain_failures("read the search pipeline"):
            try:
                content = self._client.transport.perform_request("GET", f"/_search/pipeline/{self._name}")
            except NotFoundError:
                return None
        pipeline: dict[str, Any] = content[self._name]
        return pipeline

    def find(self) -> Installation | None:
        """Return the installation, or None if no search pipeline has this name.

        Raises:
            InstallError: osrerank did not create the search pipeline.
        """
        pipeline = self._read_pipeline()
        if pipeline is None:
            return None
        description = pipeline.get("description", "")
        if not description.startswith(DESCRIPTION_PREFIX):
            raise InstallError(f"osrerank did not create the search pipeline {self._name}: choose another --name")
        rerank = _processor_options(pipeline, "response_processors", "rerank")
        oversample = _processor_options(pipeline, "request_processors", "oversample")
        installation = Installation(
            model_id=_read_model_id(pipeline) or "none",
            fields=tuple(rerank.get("context", {}).get("document_fields", ())),
            oversample=float(oversample.get("sample_factor", 1.0)),
            index=json.loads(description.removeprefix(DESCRIPTION_PREFIX))["index"],
        )
        sources = self._templates.read_sources()
        changed_names = [] if _has_processors(pipeline, installation.processors()) else [self._name]
        changed_names += [name for name, source in sources.items() if source != installation.template_source()]
        return replace(installation, templates=tuple(sources), changed_names=tuple(changed_names))

    def status(self, index: str = "") -> dict[str, Any]:
        """Return a report on the installation, after scoring two texts through it.

        Args:
            index: the index that must contain the pipeline's fields. If it is empty, these are checked: the index of
                the installation, else the indices whose default pipeline this is, else all indices.
        """
        installation = self.find()
        if installation is None:
            return {"pipeline": self._name, "installed": False}
        model = self._models.find(installation.model_id)
        default_for = self._find_default_indices()
        index = index or installation.index or ",".join(default_for)  # "" means all indices
        difference = "differs from what this version of osrerank installs: run osrerank pipeline install again"
        return {
            "pipeline": self._name,
            "installed": True,
            "server": None if model is None else model.server,
            "model_id": installation.model_id,
            "model_state": None if model is None else model.state,
            "fields": list(installation.fields),
            "oversample": installation.oversample,
            "missing_fields": describe_missing_fields(self._client, index, installation.fields),
            "default_for": default_for,
            "templates": list(installation.templates),
            "drifted": [f"{name} {difference}" for name in installation.changed_names],
            "failure": self._find_failure(installation.model_id),
        }

    def remove(self) -> list[str]:
        """Remove the search pipeline, its models and its templates, including those of interrupted installations.

        Returns:
            A sentence for each removed object, such as "removed search template books".

        Raises:
            InstallError: OpenSearch refused a request, or an index has the pipeline as its default.
        """
        removals = []
        if self.find() is not None:
            indices = ",".join(self._find_default_indices())
            if indices:
                request = f'PUT {indices}/_settings {{"{DEFAULT_PIPELINE}": null}}'
                raise InstallError(f"{self._name} is the default pipeline of {indices}: send {request} first")
            with explain_failures("remove the search pipeline"), contextlib.suppress(NotFoundError):
                self._client.transport.perform_request("DELETE", f"/_search/pipeline/{self._name}")
            removals = [f"removed search pipeline {self._name}"]
        for name in self._templates.read_sources():
            self._templates.remove(name)
            removals.append(f"removed search template {name}")
        removals += [f"removed {name}" for name in self._models.remove()]
        if self.find() is not None:  # another installation has just stored the pipeline
            removals += self.remove()
        return removals

    def _is_installed(self, installation: Installation, spec: PipelineSpec) -> bool:
        """Return whether an installation matches a specification, and can score two texts.

        OpenSearch does not reveal the token. If it is wrong, scoring fails.
        """
        model_id = installation.model_id
        expected = _plan_installation(spec, installation, model_id)
        expected_model = Model(
            state="DEPLOYED",
            server=spec.server,
            sends_token=spec.token is not None,
            client_config=spec.limits.client_config(),
        )
        if installation != expected or self._models.find(model_id) != expected_model:
            return False
        return self._find_failure(model_id) is None

    def _find_failure(self, model_id: str) -> str | None:
        """Return why a model cannot score two texts, or None if it can."""
        try:
            self._models.score_test_texts(model_id)
        except InstallError as error:
            return str(error)
        return None

    def _find_default_indices(self) -> list[str]:
        """Return the indices whose default search pipeline is this one."""
        with explain_failures("read the settings of the indices"):
            indices = self._client.indices.get_settings(
                index="_all", flat_settings=True, expand_wildcards="open,closed"
            )
        return [name for name, index in indices.items() if index["settings"].get(DEFAULT_PIPELINE) == self._name]


def _plan_installation(spec: PipelineSpec, current: Installation | None, model_id: str) -> Installation:
    """Return the installation that `Installer.install` should produce.

    It has the templates of the current installation and the specification. If the specification names no index, it has
    the index of the current installation.
    """
    templates: set[str] = set()
    index = spec.index
    if current is not None:
        templates |= {*current.templates}
        index = index or current.index
    if spec.template is not None:
        templates.add(spec.template)
    return Installation(model_id, spec.fields, spec.oversample, tuple(sorted(templates)), index)


def _processor_options(pipeline: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Return the options of the first processor with a name, or {} if there is no such processor.

    In ``{"request_processors": [{"oversample": {"sample_factor": 3}}]}``, the kind is ``request_processors``, the name
    is ``oversample``, and the options are ``{"sample_factor": 3}``.
    """
    for processor in pipeline.get(kind, ()):
        if name in processor:
            options: dict[str, Any] = processor[name]
            return options
    return {}


def _read_model_id(pipeline: Mapping[str, Any]) -> str | None:
    rerank = _processor_options(pipeline, "response_processors", "rerank")
    model_id: str | None = rerank.get("ml_opensearch", {}).get("model_id")
    return model_id


def _has_processors(pipeline: Mapping[str, Any], processors: Mapping[str, Any]) -> bool:
    """Return whether a stored search pipeline has these processors and no others."""
    kinds = ("request_processors", "response_processors", "phase_results_processors")
    return all(pipeline.get(kind, []) == processors.get(kind, []) for kind in kinds)
