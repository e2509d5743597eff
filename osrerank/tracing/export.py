"""Set up OpenTelemetry's SDK for ``osrerank serve`` and ``osrerank worker``, as the variables ``OTEL_*`` specify.

Classes of the SDK read most of the variables. In other processes, the application sets up the SDK.
"""

import logging
import os
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""The variables for the URL to which spans are sent. If one is set, spans are exported by default."""
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The variables for the protocol, in order of precedence."""
ENTRY_POINT_GROUP = "opentelemetry_traces_exporter"
"""The entry points under which packages register exporters of spans."""
INSTALL_COMMAND = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


def export_traces(service: str) -> bool:
    """Set up a tracer provider if ``OTEL_TRACES_EXPORTER`` or an endpoint is set. Return whether it was set up.

    If the SDK or the exporter is not installed, the log says what to install, and nothing is traced.

    Args:
        service: the name of the service in traces. ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` override it.
    """
    names = _exporter_names()
    if not names:
        return False
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only if traces are requested
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - only if traces are requested
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - only if traces are requested

        exporters = [_create_exporter(name) for name in names]
    except ImportError as error:
        logger.warning(
            "[no-traces] OTEL_* variables request traces, but %s is not installed: %s", error.name, INSTALL_COMMAND
        )
        return False
    provider = TracerProvider(resource=Resource.create(_service_attributes(service)))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)  # it sends the remaining spans when the process ends
    return True


def _exporter_names() -> list[str]:
    """Return the exporters that the variables name, such as ``["otlp"]``. Empty if spans are not exported."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(map(os.environ.get, ENDPOINTS)) else "none"
    names = (os.environ.get("OTEL_TRACES_EXPORTER") or default).split(",")
    return [name.strip() for name in names if name.strip() not in ("", "none")]


def _create_exporter(name: str) -> Any:
    """Create an exporter from an installed package, by its name in ``OTEL_TRACES_EXPORTER``.

    Raises:
        ImportError: no package has such an exporter.
    """
    if name == "otlp":
        protocol = os.environ.get(PROTOCOLS[0]) or os.environ.get(PROTOCOLS[1]) or "http/protobuf"
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        exporter_class = entry_point.load()
        return exporter_class()
    raise ImportError(f"there is no exporter {name}", name=f"the exporter {name}")  # the log says what is not installed


def _service_attributes(service: str) -> dict[str, str]:
    """Return ``{"service.name": service}``, or an empty dict if a variable sets the name."""
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if is_named else {"service.name": service}
