"""The paper's study, and the book about it."""
