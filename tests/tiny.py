"""The smallest notebook that can be run."""


def notebook(parameters: str, code: str) -> str:
    """The text of a notebook with one cell of parameters and one of code."""
    return f"""---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{{code-cell}}
:tags: [parameters]
{parameters}
```

```{{code-cell}}
{code}
```
"""
