"""The paper's study, and the book about it."""

from cfbook.production.show import show

__all__ = ["show"]
