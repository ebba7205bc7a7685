"""Published claims put to the test: each with its source, the data, what was measured, and the verdict."""
