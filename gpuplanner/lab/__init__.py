"""The lab: what research and published claims need and no daily command runs. The core works without this folder."""
