"""OpenSearch's own ``rerank`` search pipeline with a rerank server: install and remove it completely.

The pipeline's description records the cluster's earlier settings, before anything is changed, so that an interrupted
installation can be finished or undone from anywhere.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import ConfigError, InstallError
from osrerank.server.opensearch.cluster import (
    SettingChange,
    check_plugins,
    explained,
    joined,
    needed_changes,
    put,
    restored,
)
from osrerank.server.opensearch.fields import fields_missing
from osrerank.server.opensearch.ml_commons import CallBounds, Models
from osrerank.server.opensearch.templates import Templates, template_of

DEFAULT_PIPELINE = "index.search.default_pipeline"
MARK = "Reranks with osrerank. Made, and to be removed, by osrerank pipeline. Before: "
DRIFTED = "is not as this osrerank installs it: run osrerank pipeline install again"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to install.

    Attributes:
        server: the rerank server as the cluster reaches it, ``http(s)://host:port``.
        name: the search pipeline's.
        fields: fields whose texts the model reads, joined without a separator.
        oversample: how many times the page's size is fetched and reranked.
        token: the server's bearer token.
        default_for: an index whose searches all go through the pipeline.
        bounds: of the cluster's calls to the server.
        template: a search template that goes through the pipeline.
        index: where the fields were looked up.
    """

    server: str
    name: str
    fields: tuple[str, ...]
    oversample: float = 1.0
    token: str | None = field(default=None, repr=False)
    default_for: str | None = None
    bounds: CallBounds = field(default_factory=CallBounds)
    template: str | None = None
    index: str = ""


@dataclass(frozen=True, slots=True)
class Before:
    """The earlier values that an installation changed.

    Attributes:
        settings: the cluster settings.
        defaults: index -> its default pipeline before; None where it had none.
        templates: search templates that it made.
        index: where the fields were looked up; empty where they were not.
    """

    settings: tuple[SettingChange, ...] = ()
    defaults: Mapping[str, str | None] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    index: str = ""

    @classmethod
    def parse(cls, description: str) -> Self:
        """Read a pipeline's description."""
        content = json.loads(description.removeprefix(MARK))
        settings = (SettingChange(name, old, new, tuple(added)) for name, old, new, added in content["settings"])
        return cls(tuple(settings), content["defaults"], tuple(content.get("templates", ())), content.get("index", ""))

    def describe(self) -> str:
        """Return a pipeline's description."""
        settings = [[one.name, one.before, one.after, one.added] for one in self.settings]
        content = {"settings": settings, "defaults": dict(self.defaults), "templates": list(self.templates)}
        content |= {"index": self.index} if self.index else {}
        return MARK + json.dumps(content)


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed pipeline.

    Attributes:
        before: the values that it changed.
        model_id: of its model; None if the installation is incomplete.
        fields: fields whose texts are sent.
        oversample: how many times the page's size is reranked.
        drifted: its search pipeline and templates that are missing, changed, or of an older osrerank.
    """

    before: Before
    model_id: str | None
    fields: tuple[str, ...]
    oversample: float
    drifted: tuple[str, ...] = ()


class Installer:
    """Installs, inspects and removes a pipeline, which returns the first pass's order when reranking fails.

    Args:
        client: the cluster's, with the rights to change settings, search pipelines and models.
        name: the pipeline's, part of addresses: a letter or digit, then letters, digits, ``.``, ``_`` and ``-``.

    Raises:
        ConfigError: the name has other characters.
    """

    def __init__(self, client: OpenSearch, name: str) -> None:
        if not re.fullmatch(r"[^\W_][\w.-]*", name, re.ASCII):
            reason = (
                f"the search pipeline's name is {name!r}; it may have letters and digits, then '.', '_' and '-' too"
            )
            raise ConfigError(reason, setting="name", source="flag")
        self._client = client
        self._name = name
        self._models = Models(client, name)
        self._templates = Templates(client)

    def plan(self, wish: Wish) -> list[str]:
        """Return what installing would change, a sentence each, without changing anything.

        Raises:
            InstallError: the cluster cannot rerank, or another pipeline has that name.
        """
        check_plugins(self._client)
        found = self.find()
        steps = [str(change) for change in needed_changes(self._client, wish.server)]
        if found is None or not self._is_served(found, wish):
            steps.append(f"connector and model {self._models.label}, calling {wish.server}")
        wanted = (wish.fields, wish.oversample, ())
        if found is None or (found.fields, found.oversample, found.drifted) != wanted:
            steps.append(f"search pipeline {self._name}: {_summary(wish.fields, wish.oversample)}")
        steps += [f"search template {name}" for name in self._without_template(wish, found)]
        steps += [f"default pipeline of {index}" for index in self._without_default(wish)]
        return steps

    def install(self, wish: Wish) -> None:
        """Install everything and score a pair through it; undo the installation if that fails.

        Raises:
            InstallError: a step was refused, or the cluster cannot reach the server.
        """
        check_plugins(self._client)
        found = self.find()
        changes = needed_changes(self._client, wish.server)
        earlier = Before() if found is None else found.before
        templates = (*earlier.templates, *self._without_template(wish, found))
        defaults = {**self._without_default(wish), **earlier.defaults}
        before = Before(joined(earlier.settings, changes), defaults, templates, wish.index or earlier.index)
        try:
            self._install(wish, found, before, changes)
        except InstallError:
            with contextlib.suppress(InstallError):  # the first failure is the one to report
                self._take_back(found, changes, before)
            raise

    def _install(self, wish: Wish, found: Installation | None, before: Before, changes: list[SettingChange]) -> None:
        self._put(before.describe(), found)
        put(self._client, {change.name: change.after for change in changes})
        if found is not None and self._is_served(found, wish):
            model_id = found.model_id
        else:
            model_id = self._models.create(wish.server, wish.token, wish.bounds)
        assert model_id is not None
        self._models.probe(model_id)
        self._put(before.describe(), Installation(before, model_id, wish.fields, wish.oversample))
        self._models.remove(keep=model_id)
        for index in self._without_default(wish):
            self._set_default(index, self._name)

    def _take_back(self, found: Installation | None, changes: list[SettingChange], tried: Before) -> None:
        """Undo an installation, back to the one before it, or to none."""
        if found is None:
            self.remove()
            return
        self._models.remove(keep=found.model_id)
        put(self._client, restored(self._client, changes))
        for name in set(tried.templates) - set(found.before.templates):
            self._templates.remove(name)
        self._put(found.before.describe(), found)

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
        more = _processor(pipeline, "request_processors", "oversample")
        found = Installation(
            Before.parse(description),
            rerank.get("ml_opensearch", {}).get("model_id"),
            tuple(rerank.get("context", {}).get("document_fields", ())),
            float(more.get("sample_factor", 1.0)),
        )
        drifted = [] if _has(pipeline, _processors(found)) else [self._name]
        template = template_of(found.fields, _processors(found))
        drifted += [name for name in found.before.templates if not self._templates.has(name, template)]
        return replace(found, drifted=tuple(drifted))

    def status(self, index: str = "") -> dict[str, Any]:
        """Return what is installed and whether it works.

        Args:
            index: which must have the pipeline's fields; empty for the one of the installation, those whose default
                the pipeline is, or any.
        """
        found = self.find()
        if found is None:
            return {"pipeline": self._name, "installed": False}
        state = None if found.model_id is None else self._models.state(found.model_id)
        default_for = self._indexes()
        index = index or found.before.index or ",".join(default_for)
        return {
            "pipeline": self._name,
            "installed": True,
            "server": None if found.model_id is None else self._models.server(found.model_id),
            "model_id": found.model_id,
            "model_state": state,
            "fields": list(found.fields),
            "oversample": found.oversample,
            "missing_fields": fields_missing(self._client, index, found.fields),
            "default_for": default_for,
            "templates": list(found.before.templates),
            "settings": [str(change) for change in found.before.settings],
            "drifted": [f"{name} {DRIFTED}" for name in found.drifted],
            "failure": self._failure(found.model_id),
        }

    def plan_removal(self) -> list[str]:
        """Return the settings that a removal would restore, a sentence each, without changing anything.

        Raises:
            InstallError: the cluster does not answer, or another pipeline has that name.
        """
        found = self.find()
        return [] if found is None else [*self._defaults_back(found), *self._settings_back(found)]

    def remove(self) -> list[str]:
        """Remove everything, restore settings, and return what was done, a sentence each.

        Raises:
            InstallError: a step was refused; the pipeline, which records what is left to do, is removed last.
        """
        found = self.find()
        if found is None:
            return [f"removed {one}" for one in self._models.remove()]
        done = self._defaults_back(found)
        for index in self._indexes():
            self._set_default(index, found.before.defaults.get(index))
        done += [f"removed search template {one}" for one in found.before.templates if self._templates.remove(one)]
        done += [f"removed {one}" for one in self._models.remove()]
        done += self._settings_back(found)
        put(self._client, restored(self._client, self._unshared(found.before.settings)))
        with explained("remove the search pipeline"):
            self._client.transport.perform_request("DELETE", f"/_search/pipeline/{self._name}")
        return [*done, f"removed search pipeline {self._name}"]

    def _defaults_back(self, found: Installation) -> list[str]:
        return [
            f"default pipeline of {index}: {found.before.defaults.get(index) or 'none'}" for index in self._indexes()
        ]

    def _settings_back(self, found: Installation) -> list[str]:
        values = restored(self._client, self._unshared(found.before.settings))
        return [f"cluster setting {name}: as before" for name in values]

    def _pipeline(self) -> dict[str, Any] | None:
        """Return the search pipeline; None when there is none."""
        with explained("look at the search pipeline"):
            try:
                content = self._client.transport.perform_request("GET", f"/_search/pipeline/{self._name}")
            except NotFoundError:
                return None
        found: dict[str, Any] = content[self._name]
        return found

    def _unshared(self, changes: tuple[SettingChange, ...]) -> list[SettingChange]:
        """Return the changes that no other of our pipelines needs."""
        with explained("look at the search pipelines"):
            pipelines = self._client.transport.perform_request("GET", "/_search/pipeline")
        others = [name for name, one in pipelines.items() if str(one.get("description", "")).startswith(MARK)]
        is_alone = others == [self._name]
        return [change for change in changes if is_alone or change.added]

    def _is_served(self, found: Installation, wish: Wish) -> bool:
        """Return whether the existing model is usable."""
        if found.model_id is None or self._models.state(found.model_id) != "DEPLOYED":
            return False
        if self._models.server(found.model_id) != wish.server:
            return False
        if self._models.bounds(found.model_id) != wish.bounds:
            return False
        if self._models.sends_token(found.model_id) != (wish.token is not None):
            return False
        return wish.token is None or self._failure(found.model_id) is None  # the token cannot be read back, so try it

    def _failure(self, model_id: str | None) -> str | None:
        """Return why a pair cannot be scored through OpenSearch; None when it can."""
        if model_id is None:
            return "the installation was not finished: run osrerank pipeline install again"
        try:
            self._models.probe(model_id)
        except InstallError as error:
            return str(error)
        return None

    def _put(self, description: str, found: Installation | None) -> None:
        """Put the pipeline and the templates; of an installation that is incomplete only the description."""
        body: dict[str, Any] = {"description": description}
        if found is not None and found.model_id is not None:
            body |= _processors(found)
        with explained("put the search pipeline"):
            self._client.transport.perform_request("PUT", f"/_search/pipeline/{self._name}", body=body)
        if found is not None and found.model_id is not None:
            for name in found.before.templates:
                self._templates.put(name, template_of(found.fields, _processors(found)))

    def _indexes(self) -> list[str]:
        """Return the indexes that have this pipeline as their default."""
        return [index for index, pipeline in self._defaults("_all").items() if pipeline == self._name]

    def _without_template(self, wish: Wish, found: Installation | None) -> list[str]:
        """Return the template that is wished for and not there yet.

        Raises:
            InstallError: another template has that name.
        """
        if wish.template is None or (found is not None and wish.template in found.before.templates):
            return []
        self._templates.check(wish.template)
        return [wish.template]

    def _without_default(self, wish: Wish) -> dict[str, str | None]:
        """Return the indexes that lack the pipeline as their default, with their current one."""
        if wish.default_for is None:
            return {}
        defaults = self._defaults(wish.default_for)
        return {index: pipeline for index, pipeline in defaults.items() if pipeline != self._name}

    def _defaults(self, index: str) -> dict[str, str | None]:
        with explained(f"look at the settings of {index}"):
            found = self._client.indices.get_settings(index=index, flat_settings=True, expand_wildcards="open,closed")
        return {name: one["settings"].get(DEFAULT_PIPELINE) for name, one in found.items()}

    def _set_default(self, index: str, pipeline: str | None) -> None:
        with explained(f"set the default pipeline of {index}"):
            self._client.indices.put_settings(index=index, body={DEFAULT_PIPELINE: pipeline})


def _processor(pipeline: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Return a processor's options, none if the pipeline has no such processor."""
    found: dict[str, Any] = next((one[name] for one in pipeline.get(kind, ()) if name in one), {})
    return found


def _processors(found: Installation) -> dict[str, Any]:
    """Return the processors of an installation's pipeline."""
    context = {"document_fields": list(found.fields)}
    model = {"model_id": found.model_id}
    rerank: dict[str, Any] = {"ml_opensearch": model, "context": context, "ignore_failure": True}
    if found.oversample == 1:
        return {"response_processors": [{"rerank": rerank}]}
    return {
        "request_processors": [{"oversample": {"sample_factor": found.oversample}}],
        "response_processors": [{"rerank": rerank}, {"truncate_hits": {}}],
    }


def _has(pipeline: Mapping[str, Any], processors: Mapping[str, Any]) -> bool:
    """Return whether a pipeline has these processors and no others."""
    kinds = ("request_processors", "response_processors", "phase_results_processors")
    return all(pipeline.get(kind, []) == processors.get(kind, []) for kind in kinds)


def _summary(fields: tuple[str, ...], oversample: float) -> str:
    window = "the page" if oversample == 1 else f"{oversample:g} times the page"
    return f"reranks {window} by {', '.join(fields)}"
