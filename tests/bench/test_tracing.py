"""What the spans of a search cost, by where traces are on.

make bench TEST_OPTIONS="-k tracing -s"
"""

import statistics
import subprocess
import sys
import time

import pytest

from tests.servers import ROOT

pytestmark = pytest.mark.bench
ROUNDS, DEPTH = 5, 100
HOW = {
    "no opentelemetry": "",
    "imported, no provider": "import opentelemetry.trace",
    "OSRERANK_TRACING=off": "begin(); os.environ['OSRERANK_TRACING'] = 'off'",
    "on, not sampled": "begin(ParentBased(ALWAYS_OFF))",
    "on, all sampled": "begin()",
}
BEGIN = """
import os
def begin(sampler=None):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    class Nowhere(SpanExporter):
        def export(self, spans): return SpanExportResult.SUCCESS
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)
"""


@pytest.mark.parametrize("how", HOW)
def test_the_spans_of_a_search(how):
    """One trace with its first pass and a stage."""
    sampling = "from opentelemetry.sdk.trace.sampling import *\n" if "ParentBased" in HOW[how] else ""
    code = f"{BEGIN}\n{sampling}{HOW[how]}\nfrom tests.bench.test_tracing import *\nprint(spans_alone())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    print(f"\nthe spans of a search, {how}: {1000 * float(done.stdout):.1f} us, the median of {ROUNDS} times 1,000")


def spans_alone():
    """Return the median of the milliseconds that the spans of a search take."""
    from types import SimpleNamespace

    from osrerank.search.step import SearchRequest
    from osrerank.search.traced import request_span, search_span
    from osrerank.settings import Settings
    from osrerank.tracing.attributes import tell_outcome, tell_report
    from osrerank.tracing.spans import current, span
    from osrerank.types import StageReport

    hosts = SimpleNamespace(hosts=[{"host": "localhost", "port": 9200}])
    searcher = SimpleNamespace(service=SimpleNamespace(settings=Settings.load()))
    client = SimpleNamespace(searcher=searcher, transport=hosts)
    report = StageReport("mono", applied=True, model="osrerank/e5-small", candidates=DEPTH)

    def once():
        with search_span(client, "notes", True, "water"):
            with request_span(client, SearchRequest(None), "notes"):
                pass
            with span("stage mono", osrerank__stage__depth=DEPTH) as traced:
                tell_report(traced, report)
            tell_outcome(current(), applied=True, reason=None)

    return statistics.median([_mean_ms(once, 1_000) for _ in range(ROUNDS + 1)][1:])


def _mean_ms(once, times):
    started = time.perf_counter()
    for _ in range(times):
        once()
    return (time.perf_counter() - started) * 1000 / times
