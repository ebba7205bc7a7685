"""Files and servers of telemetry, one reader each, and the words that they share."""
