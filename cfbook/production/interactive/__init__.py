"""What the interactive pages of the book are made of: small tables and pictures of the phantom.

The pages are plain HTML and JavaScript (``book/_interactive``, ``book/_static``) and need neither
network nor kernel. ``python -m cfbook.production.interactive FOLDER`` writes their data, so that a
page never shows anything but what the package computes.
"""
