"""Set up OpenTelemetry's SDK from ``OTEL_*`` variables, for ``osrerank serve`` and ``osrerank worker``.

In all other processes, the application does this. The SDK's resource, sampler, batches and exporters read their
variables themselves.
"""

import logging
import os
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
ENTRY_POINT_GROUP = "opentelemetry_traces_exporter"
INSTALL_COMMAND = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


def export_traces(service: str) -> bool:
    """Set up a tracer provider if ``OTEL_*`` variables ask for traces; return whether it was set up.

    The variables ask for traces with an endpoint or with ``OTEL_TRACES_EXPORTER``. If the SDK or the exporter is
    missing, a log line says what to install, and nothing is traced.

    Args:
        service: the name of the service, unless a variable sets another.
    """
    if not (names := _exporter_names()):
        return False
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only where traces are asked for
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - only where traces are asked for
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - only where traces are asked for

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
    """Return the names of the exporters that the variables ask for."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(map(os.environ.get, ENDPOINTS)) else "none"
    names = os.environ.get("OTEL_TRACES_EXPORTER") or default
    return [name for part in names.split(",") if (name := part.strip()) not in ("", "none")]


def _create_exporter(name: str) -> Any:
    """Return an exporter from any installed package, by its name in ``OTEL_TRACES_EXPORTER``.

    Raises:
        ImportError: no package has such an exporter.
    """
    if name == "otlp":
        protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return entry_point.load()()
    raise ImportError(f"there is no exporter {name}", name=f"the exporter {name}")


def _service_attributes(service: str) -> dict[str, str]:
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if is_named else {"service.name": service}
