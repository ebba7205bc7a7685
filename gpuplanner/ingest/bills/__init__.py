"""Bills of clouds."""
