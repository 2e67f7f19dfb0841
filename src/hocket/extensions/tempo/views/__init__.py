"""Tempo on the page: its view, and the sheet on which scores are edited."""
