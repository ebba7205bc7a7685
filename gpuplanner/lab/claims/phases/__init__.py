"""How well phases and dips are found in jobs whose phases are known."""
