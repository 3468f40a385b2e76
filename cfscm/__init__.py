"""Deep structural causal models: learned mechanisms of the parents and of the image; audits.

``cfscm.audit("plan.yml", "out")`` is ``cfcore audit plan.yml --out out`` of the shell, and
``cfscm train plan.yml --out out`` trains the generator of a plan alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfscm.auditing.run import audit

__all__ = ["audit"]


def __getattr__(name: str) -> object:
    """The audit is imported when it is first used: torch takes a second, a help text none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cfscm.auditing.run import audit

    return audit
