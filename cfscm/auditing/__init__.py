"""Audits by a plan: it is read and tried, a generator and its readers are trained, and judged."""

from cfscm.auditing.plan import AuditPlan, read_plan
from cfscm.auditing.run import audit, describe, train_generator

__all__ = ["AuditPlan", "audit", "describe", "read_plan", "train_generator"]
