"""What stands in the files of sources: bytes to lines or items, lines to typed rows, rejects for the rest."""
