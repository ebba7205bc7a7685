"""What is handed to operators and finance: packs of a decision or a calendar, workbooks, the check of all of them."""
