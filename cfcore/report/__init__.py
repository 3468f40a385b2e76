"""What was found, as text, as JSON, and as a page that can be handed on.

``findings.judge`` turns predictions into findings, plain values with intervals and verdicts;
``page.write_report`` writes them as ``report.html``, ``report.json`` and ``tables.tex``.
"""
