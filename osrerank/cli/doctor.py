"""``osrerank doctor``: check a deployment and its settings, and say how to fix what fails."""

import dataclasses
import json

import click

from osrerank.cli.options import wants_json

MARKS = {"ok": "✓", "failed": "✗", "absent": "-"}
"""The mark of each status. A part of the deployment is absent if it is not configured, such as Redis without a URL."""


@click.command()
@click.option("--index", default="", help="Also check the text fields of this index.")
@click.pass_context
def doctor(context: click.Context, /, *, index: str) -> None:
    """Check the software, processor, model, engine, Redis and workers, and say how to fix what fails.

    The exit code is 1 if a configured part does not work.
    """
    from osrerank.doctor import examine, use_index_model
    from osrerank.settings import Settings

    global_options = ("url", "redis_url", "model", "backend", "dtype")
    settings = Settings.load(**{name: context.obj[name] for name in global_options})
    if index and not context.obj["model"]:
        settings = use_index_model(settings, index)
    findings = []
    for finding in examine(settings, index=index):
        findings.append(finding)
        if not wants_json(context):
            click.echo(f"{MARKS[finding.status]} {finding.part}: {finding.found}")
            if finding.fix and finding.status == "failed":
                click.echo(f"    fix: {finding.fix}")
    is_healthy = all(finding.status != "failed" for finding in findings)
    if wants_json(context):
        content = {"ok": is_healthy, "findings": [dataclasses.asdict(finding) for finding in findings]}
        click.echo(json.dumps(content, indent=2))
    context.exit(0 if is_healthy else 1)
