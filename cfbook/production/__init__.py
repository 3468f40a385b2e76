"""From notebooks to pages."""
