"""The smallest notebook that can be run."""

HEAD = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


def notebook(parameters: str, *cells: str) -> str:
    """The text of a notebook with one cell of parameters and some of code."""
    bodies = [f":tags: [parameters]\n{parameters}", *cells]
    return HEAD + "".join(f"\n```{{code-cell}}\n{body}\n```\n" for body in bodies)
