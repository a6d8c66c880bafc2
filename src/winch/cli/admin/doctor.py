"""`winch doctor`: look for trouble."""

from __future__ import annotations

import click

from winch.cli import MIGRATE
from winch.cli.admin.checks import Finding, Level, checks_for, obstacles
from winch.cli.admin.checks.preflight import check_preflight
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import emit_json, say
from winch.core.values.redact import mask_text
from winch.storage.protocol import advice

LIKE = {
    Level.OK: "completed",
    Level.NOTE: "scheduled",
    Level.WARNING: "retrying",
    Level.PROBLEM: "dead",
}


@click.command()
@click.option("--preflight", is_flag=True, help="Check whether the app's code can run the queued jobs.")
@json_option
@store_options
def doctor(options: StoreOptions, preflight: bool) -> None:
    """Find problems and print what to do about them; exit 1 if there is one.

    With --preflight and the application's new code (-A), also reports before a deploy which queued jobs
    that code would not run.
    """
    with opened(options, must_exist=False) as app:
        status = app.driver.check_schema()
        where = app.driver.describe()
        findings = list(obstacles(app))
        if not status.is_ready and not findings:
            found = f"version {status.current or 'none'}, this release needs {status.newest}"
            findings.append(Finding(Level.PROBLEM, "schema", found, advice(status, app.command)))
        if not findings:
            findings.append(Finding(Level.OK, "schema", f"version {status.current}"))
            for check in checks_for(app):
                findings += check(app)
            if preflight:
                findings += check_preflight(app)
    if options.as_json:
        emit_json({"store": where, "findings": [_data(finding) for finding in findings]})
    else:
        say(text.bold(text.one_line(where)))
        for finding in findings:
            _show(finding)
        say()
        say(_verdict(findings))
    subjects = {finding.subject for finding in findings if finding.level is Level.PROBLEM}
    if subjects:
        click.get_current_context().exit(MIGRATE if subjects == {"schema"} else 1)


def _show(finding: Finding) -> None:
    mark = text.state(text.padded(finding.level, 8), LIKE[finding.level])
    lead = f"  {mark} {text.padded(finding.subject, 12)} "
    room = 96 - text.width(lead)
    indent = " " * text.width(lead)
    for index, line in enumerate(_wrapped(mask_text(finding.text), room)):
        say(f"{indent if index else lead}{line}")
    for index, line in enumerate(_wrapped(finding.advice, room - 2)):
        say(f"{indent}{'  ' if index else '→ '}{line}")


def _wrapped(value: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text.one_line(value), room, break_on_hyphens=False)


def _verdict(findings: list[Finding]) -> str:
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    parts = [text.count(problems, "problem")] * bool(problems)
    parts += [text.count(warnings, "warning")] * bool(warnings)
    return " and ".join(parts) if parts else "all is well"


def _data(finding: Finding) -> dict[str, str]:
    return {
        "level": finding.level,
        "subject": finding.subject,
        "text": mask_text(finding.text),
        "advice": finding.advice,
    }
