"""The shipped model of peak memory: how it is fitted to measured runs, and how good it is on sources left out."""
