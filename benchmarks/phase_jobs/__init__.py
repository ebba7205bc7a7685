"""Jobs whose phases are known, and how well the changes of their phases are found."""
